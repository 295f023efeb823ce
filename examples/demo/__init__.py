# SPDX-License-Identifier: Apache-2.0
"""``python -m examples.demo``: the main job of the project, on real input. See ``__main__`` for its parts."""
