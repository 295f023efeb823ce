# SPDX-License-Identifier: Apache-2.0
"""Random programs of views, overlaps and writes in place: what ``torch.compile`` makes of them, against eager."""
