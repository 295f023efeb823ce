# SPDX-License-Identifier: Apache-2.0
"""The extension module, the drivers and the runtime under sanitizers, through Python."""
