"""Where ``bash tools/test.sh`` has put the libraries that are asked, besides the frameworks."""

from __future__ import annotations

import os
from pathlib import Path

LIBRARIES = (
    *("timm==1.0.31", "open_clip_torch==3.3.0", "mmengine==0.10.7", "mosaicml==0.32.1"),
    *("hi-ml-azure==0.5.4", "pytorch-ignite==0.5.5", "salesforce-lavis==1.0.2", "dora_search==0.1.13"),
    *("colossalai==0.5.0", "fairseq==0.12.2", "sagemaker_training==5.1.4"),
)
"""What the folder has, with pins; tools/setup.sh unpacks the same list, and a test compares the two."""


def oracles_folder() -> Path:
    """Return the folder with the unpacked packages, as tools/setup.sh names it.

    Raises:
        FileNotFoundError: They have not been installed.
    """
    given = os.environ.get("LAUNCHER_TEST_ORACLES")
    if given:
        return Path(given)
    home_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = Path(os.environ.get("LAUNCHER_CACHE") or os.path.join(home_cache, "cluster-launcher"))
    made = [path.parent for path in sorted(cache.glob("oracles-*/.recipe")) if _is_ours(path)]
    if not made:
        raise FileNotFoundError(f"no {cache}/oracles-* of {' '.join(LIBRARIES)}: run bash tools/test.sh")
    return made[-1]


def _is_ours(recipe: Path) -> bool:
    return set(LIBRARIES) <= set(recipe.read_text().split())
