// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "opencl/cl_api.h"

/// Sub-groups: neighbouring work-items that run in step and read each other's registers ("shuffle").
namespace outboard::opencl {

/// How many work-items a sub-group of the device's kernels has; 1 if there are no sub-groups that can shuffle.
/// `extensions` are the device's, separated by blanks.
///
/// Where kernels may ask for a size (cl_intel_required_subgroup_size), it is the one that Outboard's ask for; elsewhere
/// only a kernel that has been built can tell, so one is built.
cl_uint sub_group_size(const Api& api, cl_context context, cl_device_id id, const std::string& extensions);

}  // namespace outboard::opencl
