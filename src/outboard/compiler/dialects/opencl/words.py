# SPDX-License-Identifier: Apache-2.0
"""What OpenCL C calls the words of programs."""

from __future__ import annotations

WORDS = """#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#define OB_HAS_DOUBLES
#endif
#ifdef cl_khr_int64_base_atomics
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#endif
#pragma OPENCL FP_CONTRACT ON
#define OB_KERNEL __kernel
#define OB_GROUP_OF(x, y, z) __attribute__((reqd_work_group_size(x, y, z)))
#define OB_GLOBAL __global
#define OB_LOCAL __local
#define OB_SHARED __local
#define OB_CONSTANT __constant
#define OB_RESTRICT restrict
#define OB_ALIGNED(bytes) __attribute__((aligned(bytes)))
#define OB_UNROLL(count) __attribute__((opencl_unroll_hint(count)))
#define OB_GROUP_ID(d) ((long)get_group_id(d))
#define OB_GROUP_COUNT(d) ((long)get_num_groups(d))
#define OB_LOCAL_ID(d) ((int)get_local_id(d))
#define OB_LOCAL_COUNT(d) ((int)get_local_size(d))
#define OB_ITEM_ID(d) ((long)get_global_id(d))
#define OB_ITEM_COUNT(d) ((long)get_global_size(d))
#define OB_BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define ob_half half
#define OB_LOAD_HALF(p, i) vload_half(i, p)
#define OB_STORE_HALF(p, i, v) vstore_half_rte(v, i, p)
#define OB_ATOMIC_ADD(p, v) atomic_add(p, v)
#define OB_ATOMIC_ADD_LONG(p, v) atom_add(p, v)
#define OB_EXCHANGE(p, seen, v) atomic_cmpxchg(p, seen, v)
#define OB_EXCHANGE_LONG(p, seen, v) atom_cmpxchg(p, seen, v)
#ifdef cl_khr_subgroups
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif
#ifdef cl_khr_subgroup_shuffle
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
#define OB_SHUFFLE(value, lane) sub_group_shuffle(value, lane)
#else
#define OB_SHUFFLE(value, lane) intel_sub_group_shuffle(value, lane)
#endif
#ifdef cl_intel_required_subgroup_size
#define OB_SUB_GROUPS_OF(size) __attribute__((intel_reqd_sub_group_size(size)))
#else
#define OB_SUB_GROUPS_OF(size)
#endif
#define OB_SUB_GROUP_SIZE() get_sub_group_size()
#define OB_SUB_GROUP_ID() get_sub_group_id()
#define OB_SUB_GROUP_ITEM() get_sub_group_local_id()
#define OB_SUB_GROUP_COUNT() get_num_sub_groups()
#define OB_SUB_GROUP_BARRIER() sub_group_barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
"""
