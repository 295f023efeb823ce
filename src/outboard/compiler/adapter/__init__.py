# SPDX-License-Identifier: Apache-2.0
"""The only place that touches Inductor's private interface: graphs go in, loop kernels and plans come out."""
