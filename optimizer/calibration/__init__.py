"""Measurements of collectives: read, fitted, and written as fabrics and tables (section 6.4).

`readers` turns files into points, `groups` sorts and filters them, `fits` finds the time of a round
and the bandwidth that explain a group best, `fabrics` writes what an instance file can hold.
"""

from __future__ import annotations
