// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/point_to_point.h"

#include <utility>

namespace outboard::distributed {
namespace {

/// The contents in parts, each by an exchange of its own on the stream `copies`.
Content in_parts(const at::Tensor& tensor, Intent intent, Stream& copies) {
  return {tensor.nbytes(), [tensor, intent, &copies](uint64_t begin, uint64_t end) -> Content::Part {
            const auto item = static_cast<uint64_t>(tensor.itemsize());
            auto exchange = std::make_shared<Exchange>(copies, Exchange::Role::kPart);
            const at::Tensor host = flat(exchange->elements(some_of(tensor, begin / item, end / item), intent));
            exchange->seal();
            return {std::move(exchange), host};
          }};
}

}  // namespace

void PointToPoint::require(std::optional<int> peer, int tag) const {
  // The CPU backend has no connection of a rank to itself.
  TORCH_CHECK_VALUE(peer != rank_, "rank ", rank_, " cannot send to itself, or receive from itself: copy the tensor");
  // Greater tags are those of long messages' contents.
  TORCH_CHECK_VALUE(tag >= 0 && tag < kTags, "a message's tag must be from 0 to ", kTags - 1, ", but is ", tag);
}

WorkPointer PointToPoint::send(CollectiveCall call, int target, int tag) {
  const int content_tag = kTags + static_cast<int>(sent_++ % kTags);
  return start(std::move(call), Intent::kRead,
               [=](Content content) { return outgoing_message(std::move(content), target, tag, content_tag); });
}

WorkPointer PointToPoint::recv(CollectiveCall call, std::optional<int> source, int tag) {
  return start(std::move(call), Intent::kWrite,
               [=](Content content) { return incoming_message(std::move(content), source, tag); });
}

WorkPointer PointToPoint::start(CollectiveCall call, Intent intent,
                                const std::function<std::unique_ptr<Message>(Content content)>& make) {
  const at::Tensor& tensor = only(call.inputs);
  Stream* const copies = is_long(tensor) ? call.parts : nullptr;
  Content content;
  if (copies != nullptr) {
    call.exchange = std::make_shared<Exchange>(call.exchange->transfers(), Exchange::Role::kNone);
    content = in_parts(tensor, intent, *copies);
  } else {
    const at::Tensor host = flat(call.exchange->elements(tensor, intent));
    content = {tensor.nbytes(), [host](uint64_t, uint64_t) -> Content::Part { return {nullptr, host}; }};
  }
  call.exchange->seal();
  auto work =
      c10::make_intrusive<PeerWork>(rank_, std::move(call.label), call.exchange, tensor, make(std::move(content)));
  order_.remember(work);
  // A long message's header does not wait for the device.
  issuer_.put({copies == nullptr ? call.exchange : nullptr,
               [this, work, copies] { with_label(work->label(), [&] { work->begin(cpu_backend_.get(), copies); }); },
               {},
               [work](const std::exception_ptr& error) { work->fail(error); }});
  return work;
}

}  // namespace outboard::distributed
