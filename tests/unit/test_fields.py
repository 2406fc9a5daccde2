"""Numeric fields by path: which there are, what unit they have, and copies with other values."""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

import pytest

from instances import InputError, load_instance, parse_instance
from instances.io import example_names
from optimizer.variants.fields import (
    UNITS,
    NumericField,
    Path,
    changed,
    changed_instance,
    dimension_of,
    fields_at,
    numeric_fields,
    parse_number,
    parse_path,
    path_text,
    written,
)

Json = dict[str, Any]
#: What makes no path after a name.
NO_INDEX = ["[", "[]", "[x]", "[-1]", "[1.5]", "[1234567]", "[0", "]", "[**]"]
NO_NAME = [".", "..b", ".0", ".*", "/b", " b", "\nb"]


def document(name: str = "two-servers-one-session") -> Json:
    data: Json = load_instance(name).model_dump(mode="json")
    return data


def at(data: Json, text: str) -> list[NumericField]:
    return fields_at(data, parse_path(text, "sweep"), "sweep")


def one(data: Json, text: str) -> NumericField:
    (field,) = at(data, text)
    return field


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("name", ("name",)),
        ("search.tp", ("search", "tp")),
        ("fleet.pools[0].num_servers", ("fleet", "pools", 0, "num_servers")),
        ("fleet.pools[*].num_servers", ("fleet", "pools", "*", "num_servers")),
        ("search.tp[12]", ("search", "tp", 12)),
        ("a[0][1].b-c", ("a", 0, 1, "b-c")),
    ],
)
def test_paths_are_read_and_written_alike(text: str, path: Path) -> None:
    assert parse_path(text, "sweep") == path
    assert path_text(path) == text


@pytest.mark.parametrize(
    "text",
    ["", " ", ".", ".a", "[0]", *(f"a{end}" for end in (*NO_INDEX, *NO_NAME))],
)
def test_what_is_no_path_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_path(text, "sweep")
    assert str(caught.value).startswith("sweep: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("workload.cohorts[0].deadline_s", "s", Fraction(50, 1000)),
        ("workload.cohorts[0].num_sessions", "", 1),
        ("workload.min_on_time_fraction", "", 1),
        ("fleet.pools[0].server.power_w", "W", 10200),
        ("fleet.pools[0].server.accelerator.memory_bytes", "B", 80 * 10**9),
        ("fleet.pools[0].server.accelerator.peak_flops_per_s.bf16", "FLOP/s", 9894 * 10**11),
        ("fleet.pools[0].server.fabric.bandwidth_bytes_per_s", "B/s", 450 * 10**9),
        ("fleet.pools[0].server.fabric.alpha_s", "s", Fraction(822, 10**9)),
        ("runtime.workspace_bytes", "B", 2 * 2**30),
        ("objective.at_most.makespan_s", "s", None),
        ("objective.at_most.energy_j", "J", None),
        ("objective.at_most.occupied_card_s", "card*s", None),
        ("objective.at_most.cost_per_on_time_session", "card*s", None),
        ("objective.at_most.num_cards", "", None),
        ("search.tp", "", None),
        ("search.batch", "", None),
        ("search.batch[0]", "", 1),
    ],
)
def test_the_unit_follows_from_the_name(text: str, unit: str, value: object) -> None:
    field = one(document(), text)
    assert (field.name, field.unit, field.value) == (text, unit, value)
    assert field.is_whole == (unit in ("W", "B") or field.dimension == "whole")
    assert UNITS[field.dimension] == unit


def test_a_wildcard_names_every_element() -> None:
    data = document()
    pool = data["fleet"]["pools"][0]
    data["fleet"]["pools"] = [pool, {**pool, "name": "other", "num_servers": 5}]
    assert [f.value for f in at(data, "fleet.pools[*].num_servers")] == [pool["num_servers"], 5]
    rows = at(data, "fleet.pools[*].fabric_between.measured[*].rows[*].time_s")
    tables = pool["fabric_between"]["measured"]
    assert len(rows) == 2 * sum(len(table["rows"]) for table in tables) > 2
    assert {f.dimension for f in rows} == {"seconds"}
    assert len({f.path for f in rows}) == len(rows)


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("nope", "nope", "no such field; the instance has"),
        ("workload.nope", "workload.nope", "workload has cohorts, min_on_time_fraction"),
        ("workload.cohorts[1].deadline_s", "workload.cohorts[1]", "has 1 elements, numbered from"),
        ("workload.cohorts.deadline_s", "workload.cohorts.deadline_s", "has 1 elements"),
        ("workload.cohorts[*].nope", "workload.cohorts[0].nope", "no such field"),
        ("search.tp[0]", "search.tp[0]", "search.tp has no fields"),
        ("fleet[*]", "fleet[*]", "fleet is no list to go through"),
        ("faults[*].at_s", "faults[*].at_s", "faults is no list to go through"),
        ("name.first", "name.first", "name has no fields"),
        ("name", "name", "is not a numeric field"),
        ("fleet.pools[0]", "fleet.pools[0]", "is not a numeric field"),
        ("fleet.pools", "fleet.pools", "is not a numeric field"),
        ("search.sequence_parallel", "search.sequence_parallel", "is not a numeric field"),
        ("search.collectives", "search.collectives", "is not a numeric field"),
        ("workload.expert_counts", "workload.expert_counts", "is not a numeric field"),
        ("fleet.pools[0].server.sources.power_w", "", "is not a numeric field"),
        ("fleet.pools[0].server.accelerator.sources.memory_bytes", "", "is not a numeric field"),
    ],
)
def test_what_is_no_numeric_field_is_refused_in_one_line(text: str, place: str, said: str) -> None:
    """The source of a number is named as the number is, and is text: no quantity at all."""
    data = document()
    accelerator = data["fleet"]["pools"][0]["server"]["accelerator"]
    accelerator["sources"] = {"memory_bytes": "a data sheet of more than sixty characters " * 2}
    data["fleet"]["pools"][0]["server"]["sources"] = {"power_w": "10.2kW"}
    with pytest.raises(InputError) as caught:
        at(data, text)
    message = str(caught.value)
    assert message.startswith(f"sweep: {place or text}")
    assert said in message
    assert "\n" not in message


def test_texts_that_look_like_quantities_are_not_listed() -> None:
    data = document()
    server = data["fleet"]["pools"][0]["server"]
    server["sources"] = {"power_w": "700 W", "num_cards": "8"}
    data["description"] = data["workload"]["cohorts"][0]["name"] = "5"
    fields = list(numeric_fields(data))
    assert not [f for f in fields if "sources" in f.path or f.path[-1] in ("name", "description")]
    everything = {f.path: written(f.value, f.dimension) for f in fields if f.value is not None}
    before = parse_instance(data)
    assert changed_instance(data, everything, "sweep").sha256() == before.sha256()


def test_truth_values_and_objects_have_no_dimension() -> None:
    assert dimension_of(("runtime", "count_activations"), True) is None
    assert dimension_of(("x_s",), {}) is None
    assert dimension_of(("search", "tp"), []) is None
    assert dimension_of(("search", "tp"), [1, 2]) == "whole"
    assert dimension_of(("search", "tp"), [True]) is None
    assert dimension_of(("search", "tp"), None) is None
    assert dimension_of(("any", "deadline_s"), None) == "seconds"
    assert dimension_of(("peak_flops_per_s", "fp8"), None) == "flops_per_s"


@pytest.mark.parametrize("name", example_names())
def test_every_numeric_field_of_an_example_is_found_and_written_back(name: str) -> None:
    """Field by field: found by its own path, and the instance is the same with its own value."""
    data = document(name)
    before = load_instance(name).sha256()
    untouched = copy.deepcopy(data)
    fields = list(numeric_fields(data))
    assert len(fields) > 25
    assert len({field.path for field in fields}) == len(fields)
    for field in fields:
        assert at(data, field.name) == [field]
        assert field.value is not None
        value = written(field.value, field.dimension)
        assert parse_number(value, field.dimension, "sweep", field.name) == field.value
        same = changed_instance(data, {field.path: value}, "sweep")
        assert same.sha256() == before, field.name
    assert data == untouched


@pytest.mark.parametrize("name", ["four-sessions-fault", "mixed-wins", "qwen3-235b-8xh100"])
def test_another_value_changes_its_own_field_only(name: str) -> None:
    data = document(name)
    fields = [f for f in numeric_fields(data) if f.path[0] != "schema_version"]
    for field in fields:
        assert field.value is not None
        other = field.value + 1 if field.is_whole else field.value * Fraction(2, 3) + Fraction(1, 7)
        copied = changed(data, {field.path: written(other, field.dimension)})
        values = {f.path: f.value for f in numeric_fields(copied)}
        expected = {f.path: f.value for f in numeric_fields(data)} | {field.path: other}
        assert values == expected, field.name


def test_a_copy_shares_what_is_the_same_and_leaves_the_original_alone() -> None:
    data = document()
    untouched = copy.deepcopy(data)
    path: Path = ("fleet", "pools", 0, "server", "power_w")
    copied = changed(data, {path: 700, ("workload", "cohorts", 0, "deadline_s"): None})
    assert data == untouched
    assert copied["fleet"]["pools"][0]["server"]["power_w"] == 700
    assert copied["workload"]["cohorts"][0]["deadline_s"] is None
    assert copied["model"] is data["model"]
    assert copied["search"] is data["search"]
    was, now = data["fleet"]["pools"][0], copied["fleet"]["pools"][0]
    assert now["server"]["fabric"] is was["server"]["fabric"]
    assert now["fabric_between"] is was["fabric_between"]
    assert now["server"] is not was["server"]
    assert changed(data, {}) is data


@pytest.mark.parametrize("before", [None, [1], [1, 2, 4]])
def test_a_number_goes_where_degrees_stand_as_a_list_of_one(before: object) -> None:
    data = document()
    data["search"]["tp"] = before
    path: Path = ("search", "tp")
    assert changed(data, {path: 8})["search"]["tp"] == [8]
    assert changed_instance(data, {path: 8}, "sweep").search.tp == (8,)
    # null asks for every legal degree
    assert changed(data, {path: None})["search"]["tp"] is None
    assert changed_instance(data, {path: None}, "sweep").search.tp is None
    assert data["search"]["tp"] == before


def test_a_number_goes_where_null_stands_elsewhere_as_it_is() -> None:
    data = document()
    data["measurements"] = [{"tp": 1, "session_s": 1, "num_servers": None}]
    values: dict[Path, int | str | None] = {
        ("objective", "at_most", "num_cards"): 3,
        ("objective", "at_most", "energy_j"): 5,
        ("measurements", 0, "num_servers"): 2,
        ("workload", "cohorts", 0, "deadline_s"): 1,
    }
    instance = changed_instance(data, values, "sweep")
    assert dict(instance.objective.at_most.limits()) == {"energy": 5, "cards": 3}
    assert instance.measurements[0].num_servers == 2
    assert instance.workload.cohorts[0].deadline_s == 1


def test_one_element_of_a_list_may_change_alone() -> None:
    data = document()
    data["search"]["tp"] = [1, 2, 4]
    assert one(data, "search.tp[1]").value == 2
    assert changed(data, {("search", "tp", 1): 8})["search"]["tp"] == [1, 8, 4]
    assert [f.value for f in at(data, "search.tp[*]")] == [1, 2, 4]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("workload", "cohorts", 0, "num_sessions"), 0, "workload.cohorts[0].num_sessions = 0"),
        (("workload", "cohorts", 0, "deadline_s"), "-1s", "workload.cohorts[0].deadline_s"),
        (("search", "tp"), 0, "search.tp[0] = 0"),
        (("schema_version",), 2, "schema_version = 2"),
    ],
)
def test_a_value_that_breaks_a_rule_is_an_error_of_one_line(
    path: Path, value: int | str, said: str
) -> None:
    with pytest.raises(InputError) as caught:
        changed_instance(document(), {path: value}, "sweep")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("130ms", "seconds", Fraction(130, 1000)),
        ("1/3s", "seconds", Fraction(1, 3)),
        (0, "seconds", 0),
        ("0.24card*s", "card_seconds", Fraction(24, 100)),
        ("1.3kJ", "joules", 1300),
        ("2GiB", "bytes", 2**31),
        ("10.2kW", "watts", 10200),
        ("75%", "share", Fraction(3, 4)),
        ("450GB/s", "bytes_per_s", 450 * 10**9),
        ("8", "whole", 8),
        (8.0, "whole", 8),
    ],
)
def test_numbers_are_read_in_their_dimension(text: object, dimension: str, value: object) -> None:
    found = parse_number(text, dimension, "sweep", "field")
    assert found == value
    assert isinstance(found, int) or dimension not in ("whole", "bytes", "watts")
    assert parse_number(written(found, dimension), dimension, "sweep", "field") == found


def test_a_factor_is_a_plain_number() -> None:
    assert parse_number("1.5", "number", "sweep", "field") == Fraction(3, 2)


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("130", "nothing"),
        ("130mB", "seconds"),
        ("-1s", "seconds"),
        ("1.5", "whole"),
        ("800%", "whole"),
        ("50%", "number"),
        ("0.5B", "bytes"),
        ("", "seconds"),
        ("nan", "share"),
        (float("inf"), "seconds"),
        (None, "seconds"),
        (True, "whole"),
        ([1], "whole"),
        ("1e99", "seconds"),
    ],
)
def test_what_is_no_number_is_an_error_that_names_the_field(text: object, dimension: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_number(text, dimension, "sweep", "field")
    assert str(caught.value).startswith("sweep: field")
    assert "\n" not in str(caught.value)
