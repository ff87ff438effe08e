#pragma once
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <utility>

namespace millrace::test {

inline constexpr c10::StreamId computing = 0, copying = 1;
inline c10::StreamId current_stream = computing;

// Streams for LibTorch's "meta" device, which has none of its own.
struct MetaStreams : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::Meta> {
  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::Meta), id);
  }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(current_stream); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(copying); }
  c10::Stream exchangeStream(c10::Stream next) const noexcept override {
    return stream(std::exchange(current_stream, next.id()));
  }
};

}  // namespace millrace::test
