"""Every plan within a margin of the optimum, and which the measured spread cannot tell apart."""
