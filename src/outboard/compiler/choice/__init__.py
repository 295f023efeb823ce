# SPDX-License-Identifier: Apache-2.0
"""Which kernel or library carries out an operator that Inductor does not generate; by measurement where it matters."""
