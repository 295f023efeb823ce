# SPDX-License-Identifier: Apache-2.0
"""Programs that show what Outboard does; the models serve tests and benchmarks too."""
