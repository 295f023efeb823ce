// SPDX-License-Identifier: Apache-2.0
#include "runtime/plans/plan_binaries.h"

#include "runtime/base/error.h"
#include "runtime/device.h"

namespace outboard {

void offer_binaries(const Plan& plan, Device& device, const std::vector<std::string>& binaries) {
  if (binaries.empty()) return;
  if (binaries.size() != plan.programs.size()) {
    throw Error(OB_INVALID_ARGUMENT, "binaries for " + std::to_string(binaries.size()) + " programs; the plan has " +
                                         std::to_string(plan.programs.size()));
  }
  for (size_t i = 0; i < binaries.size(); ++i) {
    device.programs().offer(plan.programs[i].source, plan.programs[i].options, binaries[i]);
  }
}

std::vector<std::string> take_binaries(const Plan& plan, Device& device) {
  std::vector<std::string> binaries;
  for (const ProgramSpec& program : plan.programs) {
    binaries.push_back(device.programs().binary(program.source, program.options));
  }
  return binaries;
}

}  // namespace outboard
