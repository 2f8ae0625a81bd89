"""YAML as plain values, nothing of it dropped in silence."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice; YAML's own rule, which PyYAML leaves out."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        merged = "tag:yaml.org,2002:merge"  # `<<` may bring what is given beside it
        own = [key for key, _ in node.value if key.tag != merged]
        seen = set[Hashable]()
        for key_node in own:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # PyYAML's own error names it
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """The values of a document.

    Raises:
        yaml.YAMLError: it is none, holds a key twice, or is nested too deeply.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
