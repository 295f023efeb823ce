// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/by_host/host_runner.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <deque>
#include <stdexcept>
#include <utility>

#include "runtime/base/interruption.h"

namespace outboard::distributed {
namespace {

/// Some of a tensor's contents for a collective that treats its elements alike.
at::Tensor host_of(Exchange& exchange, const at::Tensor& tensor, Intent intent) {
  return flat(intent == Intent::kReadWrite ? exchange.numbers(tensor, intent) : exchange.elements(tensor, intent));
}

/// Parts of a collective that treats its elements alike.
HostRunner::Parts parts_of_each(const Tensors& tensors, Intent intent, const HostRunner::IssueSome& issue,
                                const std::function<void(const at::Tensor& some)>& after) {
  HostRunner::Parts parts;
  for (const at::Tensor& tensor : tensors) {
    const int64_t count = count_of_parts(tensor.nbytes());
    for (int64_t i = 0; i < count; ++i) {
      parts.push_back([intent, issue, after, some = count == 1 ? tensor : part_of(tensor, i, count)](Exchange& own) {
        at::Tensor value = host_of(own, some, intent);
        HostRunner::Part part;
        part.issue = [value, issue](c10d::Backend& cpu) mutable -> HostRunner::Works { return {issue(cpu, value)}; };
        if (after) part.after = [value, after] { after(value); };
        return part;
      });
    }
  }
  return parts;
}

}  // namespace

void wait_for(const HostRunner::Works& works, c10d::Work& whole) {
  wait_interruptibly([&] {
    return whole.isCompleted() ||
           std::all_of(works.begin(), works.end(), [](const WorkPointer& work) { return work->isCompleted(); });
  });
  if (whole.isCompleted()) throw std::runtime_error("aborted");
  for (const WorkPointer& work : works) work->wait();
}

WorkPointer HostRunner::start(DueCall call, Issue issue, std::function<void()> after) {
  return start_agreed(
      std::move(call), [issue = std::move(issue)](c10d::Backend& cpu, CollectiveWork&) { return issue(cpu); },
      std::move(after));
}

WorkPointer HostRunner::start_agreed(DueCall call, IssueAgreed issue, std::function<void()> after,
                                     bool may_be_at_once) {
  const std::shared_ptr<Exchange> exchange = call->exchange;
  exchange->seal();
  auto work = order_.work_of(std::move(call));
  // Follows them when others may be issued: works that are done call back at once, and a callback may wait for others.
  const auto begun = std::make_shared<Works>();
  issuer_.put({exchange,
               [this, work, begun, issue = std::move(issue)] {
                 work->begin();
                 with_label(work->label(), [&] { *begun = issue(*cpu_backend_.get(), *work); });
               },
               [work, begun, after = std::move(after)] { work->follow(*begun, after); },
               [work](const std::exception_ptr& error) { work->fail(error); }, may_be_at_once});
  return work;
}

WorkPointer HostRunner::start_parts(DueCall call, Parts parts) {
  return start_parts(std::move(call), [parts = std::move(parts)](CollectiveWork&) { return parts; });
}

WorkPointer HostRunner::start_parts(DueCall call, MakeParts make) {
  const auto exchange = std::make_shared<Exchange>(call->exchange->transfers(), Exchange::Role::kNone);
  Stream& copies = *call->parts;
  call->exchange = exchange;
  exchange->seal();
  auto work = order_.work_of(std::move(call));
  const auto issue = [this, work, make = std::move(make), exchange, &copies] {
    work->begin();
    with_label(work->label(), [&] { run_parts(*work, make(*work), copies); });
    exchange->give_back_behind(copies);
  };
  issuer_.put({exchange, issue, [work] { work->follow({}, {}); },
               [work](const std::exception_ptr& error) { work->fail(error); }, /*may_be_at_once=*/false});
  return work;
}

void HostRunner::run_parts(CollectiveWork& work, const Parts& parts, Stream& copies) {
  struct Staged {
    std::shared_ptr<Exchange> exchange;
    Part part;
  };
  std::deque<Staged> ahead;
  std::shared_ptr<Exchange> leaving;
  size_t staged = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (; staged < std::min(parts.size(), i + 1 + kAhead); ++staged) {
      auto exchange = std::make_shared<Exchange>(copies, Exchange::Role::kPart);
      Part part = parts[staged](*exchange);
      exchange->seal();
      ahead.push_back({std::move(exchange), std::move(part)});
    }
    const Staged now = std::move(ahead.front());
    ahead.pop_front();
    now.exchange->wait();
    if (i != 0) work.begin();
    wait_for(now.part.issue(*cpu_backend_.get()), work);
    if (now.part.after) now.part.after();
    if (i + 1 != parts.size()) work.end_part();
    if (leaving != nullptr) leaving->wait_until_given_back();
    leaving = now.exchange;
    leaving->give_back();
  }
}

WorkPointer HostRunner::start_alike(DueCall call, Intent intent, const IssueSome& issue,
                                    const std::function<void(const at::Tensor& some)>& after) {
  if (any_is_long(call->inputs)) {
    Parts parts = parts_of_each(call->inputs, intent, issue, after);
    return start_parts(std::move(call), std::move(parts));
  }
  Tensors values;
  for (const at::Tensor& tensor : call->inputs) values.push_back(host_of(*call->exchange, tensor, intent));
  const auto issue_all = [values, issue](c10d::Backend& cpu) mutable {
    Works works;
    for (at::Tensor& value : values) works.push_back(issue(cpu, value));
    return works;
  };
  if (!after) return start(std::move(call), issue_all);
  return start(std::move(call), issue_all, [values, after] { std::for_each(values.begin(), values.end(), after); });
}

int64_t HostRunner::greatest(int64_t number, CollectiveWork& work) {
  Tensors one{at::full({1}, number, at::kLong)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  options.asyncOp = false;
  wait_for({cpu_backend_.get()->allreduce(one, options)}, work);
  return one[0].item<int64_t>();
}

bool HostRunner::someone_stages(bool own, CollectiveWork& work) {
  if (!someone_stages_.has_value()) someone_stages_ = greatest(own ? 1 : 0, work) != 0;
  return *someone_stages_;
}

void add_copies(HostRunner::Parts& parts, const Tensors& from, const Tensors& to, Stream& copies) {
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i].is_same(to[i])) continue;
    parts.push_back([source = from[i], target = to[i], &copies](Exchange&) -> HostRunner::Part {
      return {[](c10d::Backend&) -> HostRunner::Works { return {}; },
              [source, target, &copies] {
                const at::AutoDispatchBelowADInplaceOrView below_autograd;
                const c10::StreamGuard guard(torch_stream(copies));
                target.copy_(source);
              }};
    });
  }
}

}  // namespace outboard::distributed
