# SPDX-License-Identifier: Apache-2.0
"""Code in the documents."""

from __future__ import annotations

import re
from pathlib import Path

_DOCUMENTS = Path(__file__).parents[2] / "docs"


def code_of(page: str) -> str:
    """The Python blocks of a page, one after the other, as one program."""
    blocks = re.findall(r"^```python\n(.*?)^```", (_DOCUMENTS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert blocks, page
    return "\n".join(blocks)
