"""Generated pods, nodes, edits and placement rules, which share a few keys and values."""

from typing import Any

from hypothesis import strategies as st

from holdfast.webhook.model.edits import PreferNodes, Requirement, RequireNodes, SelectNodes
from tests.support.matching import PREFERRED, REQUIRED, make_node

KEYS = ["role", "zone", "size"]
WORDS = ["a", "b", "4", "05", "12"]
NODE_NAMES = ["node-1", "node-2", "node-3"]


def requirements(numbers: tuple[str, ...] = ("4", "5", "11")) -> st.SearchStrategy[Requirement]:
    keys = st.sampled_from(KEYS)
    word_values = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple)
    number_values = st.sampled_from(numbers).map(lambda value: (value,))
    return st.one_of(
        st.builds(Requirement, keys, st.sampled_from(["In", "NotIn"]), word_values),
        st.builds(Requirement, keys, st.sampled_from(["Exists", "DoesNotExist"])),
        st.builds(Requirement, keys, st.sampled_from(["Gt", "Lt"]), number_values),
    )


fields = st.builds(
    Requirement,
    st.just("metadata.name"),
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from(NODE_NAMES).map(lambda name: (name,)),
    st.just(True),
)


def as_json(requirement: Requirement) -> dict[str, Any]:
    document: dict[str, Any] = {"key": requirement.key, "operator": requirement.operator}
    return document | ({"values": list(requirement.values)} if requirement.values else {})


terms = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.none() | st.lists(requirements().map(as_json), max_size=3),
        "matchFields": st.none() | st.lists(fields.map(as_json), max_size=2),
    },
)
node_affinities = st.fixed_dictionaries(
    {},
    optional={
        REQUIRED: st.none()
        | st.fixed_dictionaries({"nodeSelectorTerms": st.none() | st.lists(terms, max_size=4)}),
        PREFERRED: st.none()
        | st.lists(
            st.fixed_dictionaries({"weight": st.integers(1, 100), "preference": terms}), max_size=2
        ),
    },
)
affinities: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "nodeAffinity": st.none() | node_affinities,
        "podAntiAffinity": st.just({PREFERRED: []}),
    },
)
selectors = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(WORDS), max_size=2)
pods = st.fixed_dictionaries(
    {
        "metadata": st.just({"name": "x"}),
        "spec": st.fixed_dictionaries(
            {}, optional={"affinity": st.none() | affinities, "nodeSelector": selectors | st.none()}
        ),
    }
)
edit_lists = st.lists(
    st.one_of(
        st.builds(
            RequireNodes, st.lists(requirements() | fields, min_size=1, max_size=3).map(tuple)
        ),
        st.builds(SelectNodes, st.sampled_from(KEYS), st.sampled_from(WORDS)),
        st.builds(
            PreferNodes,
            st.integers(1, 100),
            st.lists(requirements() | fields, min_size=1, max_size=3).map(tuple),
        ),
    ),
    max_size=4,
)
nodes = st.lists(
    st.builds(
        make_node,
        st.sampled_from(NODE_NAMES),
        st.dictionaries(st.sampled_from(KEYS), st.sampled_from([*WORDS, ""]), max_size=3),
    ),
    min_size=1,
    max_size=8,
)


written_requirements = requirements().map(as_json)
rule_parts = st.fixed_dictionaries(
    {"require": st.lists(written_requirements, min_size=1, max_size=3)},
    optional={
        "nodeSelector": st.dictionaries(st.sampled_from(KEYS), st.sampled_from(WORDS), max_size=1),
        "prefer": st.lists(
            st.fixed_dictionaries(
                {
                    "weight": st.integers(1, 100),
                    "require": st.lists(written_requirements, min_size=1, max_size=1),
                }
            ),
            max_size=1,
        ),
    },
)
