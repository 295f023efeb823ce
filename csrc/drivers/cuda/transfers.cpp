// SPDX-License-Identifier: Apache-2.0
#include "cuda/transfers.h"

#include <algorithm>
#include <cstring>

#include "cuda/device.h"

namespace outboard::cuda {
namespace {

/// What is filled word by word; the rest is copied from it, twice as much each time.
constexpr uint64_t kWordByWord = uint64_t{64} << 10;
/// Copies that one with overlapping ranges is taken apart into, at most.
constexpr uint64_t kMostParts = 64;

bool same_words(const uint32_t* words, uint32_t count) {
  return std::all_of(words, words + count, [&](uint32_t word) { return word == words[0]; });
}

/// A pattern of two or four words that differ: each word by itself, in steps as long as the pattern. Rows of one word
/// are what the API calls it.
ob_status fill_words(ob_stream stream, CUdeviceptr dst, const uint32_t* words, uint32_t count, uint64_t bytes) {
  const uint64_t size = uint64_t{count} * sizeof(uint32_t), first = std::min(bytes, kWordByWord);
  for (uint32_t i = 0; i < count; ++i) {
    const CUresult result =
        cu().cuMemsetD2D32Async(dst + i * sizeof(uint32_t), size, words[i], 1, first / size, stream->stream);
    if (result != CUDA_SUCCESS) return status_of(stream->device, result, "cuMemsetD2D32Async");
  }
  for (uint64_t done = first; done < bytes;) {
    const uint64_t part = std::min(done, bytes - done);
    const CUresult result = cu().cuMemcpyDtoDAsync(dst + done, dst, part, stream->stream);
    if (result != CUDA_SUCCESS) return status_of(stream->device, result, "cuMemcpyDtoDAsync");
    done += part;
  }
  return OB_OK;
}

/// Parts as long as the ranges are apart, from the end that the target lies behind.
ob_status copy_in_parts(ob_stream stream, CUdeviceptr dst, CUdeviceptr src, uint64_t bytes) {
  const uint64_t apart = dst > src ? dst - src : src - dst;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t part = std::min(apart, bytes - done);
    const uint64_t at = dst < src ? done : bytes - done - part;
    const CUresult result = cu().cuMemcpyDtoDAsync(dst + at, src + at, part, stream->stream);
    if (result != CUDA_SUCCESS) return status_of(stream->device, result, "cuMemcpyDtoDAsync");
    done += part;
  }
  return OB_OK;
}

/// Through memory of its own, which is given back when the stream has come so far.
ob_status copy_by_way(ob_stream stream, CUdeviceptr dst, CUdeviceptr src, uint64_t bytes) {
  const ob_device device = stream->device;
  CUdeviceptr between = 0;
  CUresult result = cu().cuMemAlloc(&between, bytes);
  if (result != CUDA_SUCCESS) return status_of(device, result, "cuMemAlloc");
  result = cu().cuMemcpyDtoDAsync(between, src, bytes, stream->stream);
  if (result == CUDA_SUCCESS) result = cu().cuMemcpyDtoDAsync(dst, between, bytes, stream->stream);
  const ob_status copied = status_of(device, result, "cuMemcpyDtoDAsync");
  const ob_status finished = status_of(device, cu().cuStreamSynchronize(stream->stream), "cuStreamSynchronize");
  const ob_status freed = status_of(device, cu().cuMemFree(between), "cuMemFree");
  return copied != OB_OK ? copied : finished != OB_OK ? finished : freed;
}

}  // namespace

ob_status enqueue_fill(ob_stream stream, CUdeviceptr dst, const void* pattern, uint32_t size, uint64_t bytes) {
  uint32_t words[4];
  const ob_device device = stream->device;
  if (size == 1) {
    uint8_t value;
    std::memcpy(&value, pattern, size);
    return status_of(device, cu().cuMemsetD8Async(dst, value, bytes, stream->stream), "cuMemsetD8Async");
  }
  if (size == 2) {
    uint16_t value;
    std::memcpy(&value, pattern, size);
    return status_of(device, cu().cuMemsetD16Async(dst, value, bytes / size, stream->stream), "cuMemsetD16Async");
  }
  if (size != 4 && size != 8 && size != 16) {
    return fail(OB_INVALID_ARGUMENT, "a pattern has 1, 2, 4, 8 or 16 bytes, not " + std::to_string(size));
  }
  std::memcpy(words, pattern, size);
  const uint32_t count = size / sizeof(uint32_t);
  if (!same_words(words, count)) return fill_words(stream, dst, words, count, bytes);
  return status_of(device, cu().cuMemsetD32Async(dst, words[0], bytes / sizeof(uint32_t), stream->stream),
                   "cuMemsetD32Async");
}

ob_status enqueue_device_copy(ob_stream stream, CUdeviceptr dst, CUdeviceptr src, uint64_t bytes) {
  const uint64_t apart = dst > src ? dst - src : src - dst;
  if (apart == 0) return OB_OK;
  if (bytes <= apart) {
    return status_of(stream->device, cu().cuMemcpyDtoDAsync(dst, src, bytes, stream->stream), "cuMemcpyDtoDAsync");
  }
  const bool few = (bytes + apart - 1) / apart <= kMostParts;
  return few ? copy_in_parts(stream, dst, src, bytes) : copy_by_way(stream, dst, src, bytes);
}

}  // namespace outboard::cuda
