"""Single failures in capacity plans: what is lost, and who is served after it, from both sides.

With TP1 a session of two tokens after 10 takes 6368 ns (see `tests/unit/test_evaluate.py`).
"""

from __future__ import annotations

from capacity_sessions import NS, TP1, broken, case, chat, judge, load
from optimizer.capacity.plan import ServerFill

#: One server with two instances of option 0, TP1.
TWO = (ServerFill(0, 1, ((0, 2),)),)


def test_events_every_one_has_loads_of_its_own() -> None:
    lossy = case(failures=[{"kind": "server", "min_on_time_fraction": 0}], servers=2)
    assert len(lossy.problem.events) == 2
    one = [load(0, (0, 1))]
    assert broken(lossy, TWO, one, [], []) == []
    for number, off in ((0, 2), (1, 1), (3, 1)):
        found = broken(lossy, TWO, one, *[[]] * number)
        assert found == [("events", "plan", off, "events")]
    assert [e.sessions for e in judge(lossy, TWO, one, []).after] == [(0,), (0,)]


def test_groups_after_a_server_is_lost_are_those_of_the_others() -> None:
    lossy = case(failures=[{"kind": "server"}], servers=3)
    fills = [ServerFill(0, 1, ((0, 2),)), ServerFill(1, 1, ((0, 1),))]
    three, one, two = ([load(0, (0, 1), groups=n)] for n in (3, 1, 2))
    assert broken(lossy, fills, three, one, two, three) == []
    found = broken(lossy, fills, three, two, two, three)
    assert found == [("groups", f"without server p/0: {TP1}", 1, "groups")]
    found = broken(lossy, fills, three, one, three, three)
    assert found == [("groups", f"without server p/1: {TP1}", 1, "groups")]


def test_sessions_after_an_event_are_as_many_as_it_asks_for() -> None:
    # half of 5 sessions are 2.5, so 3 must be on time
    lossy = case(chat(5), failures=[{"kind": "server", "min_on_time_fraction": "50%"}], servers=1)
    healthy = [load(0, (0, 5))]
    found = broken(lossy, TWO, healthy, [])
    assert found == [("sessions", "without server p/0: cohort chat", 3, "sessions")]
    spare = case(chat(5), failures=[{"kind": "server", "min_on_time_fraction": "50%"}], servers=2)
    both = [ServerFill(0, 1, ((0, 1),)), ServerFill(1, 1, ((0, 1),))]
    for taken, off in ((2, 1), (3, 0), (5, 0), (6, 1)):
        expected = [("sessions", "without server p/1: cohort chat", off, "sessions")] if off else []
        assert broken(spare, both, healthy, healthy, [load(0, (0, taken))]) == expected


def test_a_lost_card_takes_one_instance_of_its_option() -> None:
    lossy = case(failures=[{"kind": "card"}], batch=[1, 2])
    assert [e.option for e in lossy.problem.events] == [0, 1]
    two, one = [load(0, (0, 1), groups=2)], [load(0, (0, 1))]
    # option 1 is not in use: nothing happens
    assert broken(lossy, TWO, two, one, two) == []
    found = broken(lossy, TWO, two, two, two)
    name = f"a card of {TP1}"
    assert found == [("groups", f"without {name}: {TP1}", 1, "groups")]


def test_a_lost_server_takes_an_instance_over_several_servers_with_it() -> None:
    lossy = case(tp=[4], cards=2, servers=4, failures=[{"kind": "server"}])
    fills = [ServerFill(c, 1, (), 0) for c in range(4)]
    two, one = [load(0, (0, 1), groups=2)], [load(0, (0, 1))]
    assert broken(lossy, fills, two, one, one, one, one) == []
    found = broken(lossy, fills, two, one, two, one, one)
    where = f"without server p/1: tiny, {lossy.problem.options[0].footprint.label()} on p"
    assert found == [("groups", where, 1, "groups")]


def test_a_lost_switch_takes_all_its_servers() -> None:
    domains = [{"name": "s", "kind": "switch", "pools": ["q"]}]
    lossy = case(
        pools=("p", "q"),
        failures=[{"kind": "switch"}],
        fleet={"failure_domains": domains},
    )
    fills = [ServerFill(0, 1, ((0, 2),)), ServerFill(1, 2, ((1, 4),))]
    healthy = [load(0, (0, 1), groups=2), load(1, (0, 1), groups=8)]
    assert broken(lossy, fills, healthy, healthy[:1]) == []
    left = [healthy[0], load(1, (0, 1))]
    where = "without switch s: tiny, TP1 on q"
    assert broken(lossy, fills, healthy, left) == [("groups", where, 1, "groups")]


def test_a_group_that_breaks_a_rule_by_itself_is_named_once() -> None:
    slow = case(chat(deadline_s="6368ns"), failures=[{"kind": "server"}], servers=2)
    late, other = [load(0, (0, 2))], [load(0, (0, 3))]
    fills = [ServerFill(0, 1, ((0, 1),)), ServerFill(1, 1, ((0, 1),))]
    found = broken(slow, fills, late, late, other)
    assert found == [
        ("late", f"chat on {TP1}", 6368 * NS, "s"),
        ("late", f"without server p/1: chat on {TP1}", 2 * 6368 * NS, "s"),
    ]


def test_unknown_of_loads_after_an_event_names_the_event_by_its_place() -> None:
    lossy = case(failures=[{"kind": "server"}], servers=2)
    found = broken(lossy, TWO, [], [], [load(7, (0, 1))])
    assert found == [("unknown", "loads_after[1][0]", 1, "options")]
