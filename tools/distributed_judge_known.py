# SPDX-License-Identifier: Apache-2.0
"""Why tests of PyTorch's fail on the device's process-group backend, one sentence for each kind of failure."""

#: (a regular expression over the test's name, one over what it said, the explanation); the first that fits counts.
EXPLANATIONS: tuple[tuple[str, str, str], ...] = ()
