"""For the reference: an example that ends a docstring without a heading becomes a section of its own."""

import re
from typing import Any

from griffe import Extension, Object


class ExamplesSection(Extension):
    """Put numpy's heading before the first `>>>` of a docstring that has none."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Change the docstring before it is parsed."""
        if obj.docstring is not None and "Examples\n---" not in obj.docstring.value:
            value = re.sub(r"(\A|\n\n)(?=>>> )", r"\1Examples\n--------\n", obj.docstring.value, count=1)
            obj.docstring.value = value
