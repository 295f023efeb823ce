# SPDX-License-Identifier: Apache-2.0
"""What is special about operators, one row each (``facts``)."""
