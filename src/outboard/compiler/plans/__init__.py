# SPDX-License-Identifier: Apache-2.0
"""The Plan, what the compiler makes and the runtime executes: its parts, how it is written, built, and kept on disk."""
