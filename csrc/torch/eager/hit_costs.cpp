// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/hit_costs.h"

#include <ATen/ops/add.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <vector>

#include "torch/bridge/devices.h"
#include "torch/bridge/tensor.h"
#include "torch/eager/eager.h"
#include "torch/eager/eager_call.h"

namespace outboard::aten {
namespace {

/// Nanoseconds of one call of `part`: the median over series short enough not to fill the launch queue.
template <typename Part>
double median_cost(Stream& stream, int64_t bursts, Part&& part) {
  constexpr int kCalls = 256;
  std::vector<double> costs;
  for (int64_t burst = 0; burst < bursts; ++burst) {
    translate_errors([&] { stream.synchronize(); });
    part();  // wakes the thread behind the launch queue
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < kCalls; ++call) part();
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
    costs.push_back(taken.count() / kCalls);
  }
  std::nth_element(costs.begin(), costs.begin() + bursts / 2, costs.end());
  return costs.at(static_cast<size_t>(bursts / 2));
}

}  // namespace

HitCosts EagerCall::costs(int64_t bursts) {
  device_ = unify_devices(op_, arguments_);
  TORCH_CHECK(select(), op_.name, " runs on the CPU with these arguments");
  HitCosts costs{};
  const auto measure = [&](auto&& part) { return median_cost(current_stream(device_), bursts, part); };
  costs.device = measure([&] { unify_devices(op_, arguments_); });
  costs.signature = measure([&] {
    signature_.clear();
    make_signature(op_, arguments_, bake_, signature_);
  });
  costs.lookup = measure([&] { mine_.plans.entry_of(op_, device_, signature_.bytes); });
  costs.symbols = measure([&] { executable_ = find_plan(*entry_, signature_.inputs.data(), *symbols_); });
  costs.plan = measure([&] {
    run_plan();
    for (const Result& result : *results_) {
      if (result.new_allocation) result.allocation->release();
    }
  });
  return costs;
}

HitCosts hit_costs(const at::Tensor& left, const at::Tensor& right, int64_t bursts) {
  TORCH_CHECK(bursts > 0, "the number of bursts must be positive");
  static const Operator& add = find_operator("aten::add", "Tensor");
  const auto call = [&](auto&& function) {
    c10::IValue values[] = {lend(left), lend(right), 1};
    Arguments arguments(values, std::size(values), Arguments::kLent);
    return function(arguments);
  };
  HitCosts costs = call([&](Arguments& arguments) { return EagerCall(add, arguments).costs(bursts); });
  Stream& stream = current_stream(left.device().index());
  costs.kernel =
      median_cost(stream, bursts, [&] { call([](Arguments& arguments) { return eager_tensor(add, arguments); }); });
  costs.call = median_cost(stream, bursts, [&] { at::add(left, right); });
  return costs;
}

}  // namespace outboard::aten
