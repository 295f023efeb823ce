# SPDX-License-Identifier: Apache-2.0
"""Random programs of collectives: torch.distributed on the device against its definition, which every rank computes."""
