// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "torch/distributed/staging/cpu_backend.h"
#include "torch/distributed/staging/issuer.h"
#include "torch/distributed/terms/tensors.h"
#include "torch/distributed/works/collective_order.h"
#include "torch/distributed/works/work.h"

namespace outboard::distributed {

/// Has a group's CPU backend carry out collectives on tensors of the device: each begins when the device has done what
/// comes before it, in the order of the calls, with all contents at once or in parts. Which calls those are of the
/// backend's, and with what, is told by who starts one (host_collectives.h).
class HostRunner {
 public:
  using Works = std::vector<WorkPointer>;
  /// A collective of the CPU backend's on CPU tensors.
  using Issue = std::function<Works(c10d::Backend& cpu)>;
  /// The same where it depends on what ranks agree on then.
  using IssueAgreed = std::function<Works(c10d::Backend& cpu, CollectiveWork& work)>;
  /// What the CPU backend does, and what is done to its results on the host.
  struct Part {
    Issue issue;
    std::function<void()> after;
  };
  /// Makes a part of a collective, with its tensors by an exchange of its own.
  using MakePart = std::function<Part(Exchange& exchange)>;
  using Parts = std::vector<MakePart>;
  /// Is called when the device is done with what comes before the parts.
  using MakeParts = std::function<Parts(CollectiveWork& work)>;
  /// What a collective that treats all elements alike does to some of them.
  using IssueSome = std::function<WorkPointer(c10d::Backend& cpu, at::Tensor& some)>;

  /// `cpu_backend` and `order`: outlive this.
  HostRunner(CpuBackend& cpu_backend, CollectiveOrder& order, int rank, int size)
      : cpu_backend_(cpu_backend), order_(order), rank_(rank), size_(size) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Of tensors of the call's own exchange. `after` runs on the host when the CPU backend is done.
  WorkPointer start(DueCall call, Issue issue, std::function<void()> after = {});
  /// `may_be_at_once`: on the calling thread, which then waits for what ranks agree on.
  WorkPointer start_agreed(DueCall call, IssueAgreed issue, std::function<void()> after, bool may_be_at_once = true);
  /// In parts: while the CPU backend has one of them, the next one is on its way to the host and the last one on its
  /// way back, and no others are.
  WorkPointer start_parts(DueCall call, Parts parts);
  WorkPointer start_parts(DueCall call, MakeParts make);
  /// What treats the elements of the call's tensors alike, long tensors in parts.
  WorkPointer start_alike(DueCall call, Intent intent, const IssueSome& issue,
                          const std::function<void(const at::Tensor& some)>& after = {});

  /// These are for who issues a collective.
  void run_parts(CollectiveWork& work, const Parts& parts, Stream& copies);
  /// The greatest of all ranks' numbers. All ranks call this, in the order of collectives.
  int64_t greatest(int64_t number, CollectiveWork& work);
  /// Whether the host cannot address the memory of some rank's device: all ranks call this in their first all_to_all.
  bool someone_stages(bool own, CollectiveWork& work);

  /// Waits until everything is issued.
  void drain() { issuer_.drain(); }

 private:
  CpuBackend& cpu_backend_;
  CollectiveOrder& order_;
  const int rank_, size_;
  std::optional<bool> someone_stages_;  ///< once that is known; for who issues collectives
  Issuer issuer_;
};

/// Waits for works of the CPU backend. Throws what failed, or if the whole collective was aborted.
void wait_for(const HostRunner::Works& works, c10d::Work& whole);

/// Adds parts that move nothing: what has arrived elsewhere is copied to where it belongs, behind the parts before.
void add_copies(HostRunner::Parts& parts, const Tensors& from, const Tensors& to, Stream& copies);

}  // namespace outboard::distributed
