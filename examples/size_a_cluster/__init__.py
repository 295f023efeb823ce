# SPDX-License-Identifier: Apache-2.0
"""What training steps and collectives cost on a cluster: a model of both, and what it predicts."""
