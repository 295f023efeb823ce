// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/overlap.h"

#include <ATen/MemoryOverlap.h>

#include "torch/bridge/device_type.h"
#include "torch/eager/fallback.h"
#include "torch/eager/map_tensors.h"

namespace outboard::aten {
namespace {

/// What the tensors of one call share.
class Overlaps {
 public:
  Overlaps(const Operator& op, Arguments& arguments) : op_(op), arguments_(arguments) {}

  /// See `resolve_overlap`.
  bool resolve() {
    bool is_clear = true, repeats = false, is_listed = false;
    each_tensor(true, [&](size_t, const at::Tensor& target) {
      each_listed([&](const at::Tensor& source) { is_listed = is_listed || overlaps(target, source); });
      repeats = repeats || (!op_.facts.idempotent && at::has_internal_overlap(target) == at::MemOverlap::Yes);
      each_tensor(false, [&](size_t, const at::Tensor& source) { is_clear = is_clear && !overlaps(target, source); });
    });
    if (is_clear && !is_listed && !repeats) return true;
    const bool is_accepted = is_listed ? rehearse_large_on_cpu(op_, arguments_) : rehearse_on_cpu(op_, arguments_);
    if (repeats) return false;
    each_tensor(true, [&](size_t, const at::Tensor& target) {
      if (op_.pointwise) check_partial_overlap(target);
      if (is_listed) {
        TORCH_CHECK(is_accepted, "unsupported operation: ", op_.name,
                    " writes to memory that one of the tensors in its list occupies. Please clone() that tensor "
                    "before performing the operation.");
        replace_listed(target);
      }
      each_tensor(false, [&](size_t i, const at::Tensor& source) {
        if (overlaps(target, source)) arguments_.replace(i, source.clone());
      });
    });
    return true;
  }

  /// See `is_read`.
  bool reads(const at::Tensor& target) {
    bool found = false;
    const auto look = [&](const at::Tensor& source) {
      found = found || (source.has_storage() && target.is_alias_of(source));
    };
    each_tensor(false, [&](size_t, const at::Tensor& source) { look(source); });
    each_listed(look);
    return found;
  }

 private:
  template <typename Visitor>
  void each_tensor(bool written, Visitor&& visitor) {
    for (size_t i = 0; i < op_.roles.size(); ++i) {
      if (op_.written[i] != written || op_.roles[i] != ArgumentRole::kTensor || arguments_[i].isNone()) continue;
      const at::Tensor& tensor = arguments_[i].toTensor();
      if (tensor.defined() && tensor.device().type() == kOurs) visitor(i, tensor);
    }
  }

  /// Exchanges the tensors of lists that are read and overlap a target for copies.
  void replace_listed(const at::Tensor& target) {
    for (size_t i = 0; i < op_.roles.size(); ++i) {
      if (op_.written[i] || op_.roles[i] != ArgumentRole::kTensorList || arguments_[i].isNone()) continue;
      arguments_.replace(i, map_tensors(arguments_[i], [&](const at::Tensor& source) {
                           return source.defined() && overlaps(target, source) ? source.clone() : source;
                         }));
    }
  }

  /// Visits the tensors of lists that are read.
  template <typename Visitor>
  void each_listed(Visitor&& visitor) {
    for (size_t i = 0; i < op_.roles.size(); ++i) {
      if (op_.written[i] || op_.roles[i] != ArgumentRole::kTensorList || arguments_[i].isNone()) continue;
      for (const c10::IValue& item : arguments_[i].toListRef()) {
        if (!item.isNone() && item.toTensor().defined()) visitor(item.toTensor());
      }
    }
  }

  /// Whether writing one tensor changes what is still to be read of another.
  bool overlaps(const at::Tensor& target, const at::Tensor& source) const {
    if (!source.has_storage() || !target.is_alias_of(source)) return false;
    const at::MemOverlapStatus status = at::get_overlap_status(target, source);
    return status != at::MemOverlapStatus::No && !(op_.pointwise && status == at::MemOverlapStatus::Full);
  }

  /// Large arguments are not rehearsed.
  void check_partial_overlap(const at::Tensor& target) {
    each_tensor(false, [&](size_t, const at::Tensor& source) { at::assert_no_partial_overlap(target, source); });
  }

  const Operator& op_;
  Arguments& arguments_;
};

}  // namespace

bool resolve_overlap(const Operator& op, Arguments& arguments) { return Overlaps(op, arguments).resolve(); }

bool is_read(const Operator& op, Arguments& arguments, const at::Tensor& target) {
  return Overlaps(op, arguments).reads(target);
}

}  // namespace outboard::aten
