#include "millrace/comm/collectives.h"

#include <algorithm>

#include "millrace/core/error.h"
#include "mpi_collectives.h"

namespace millrace {

std::size_t bytes_of(WireType type) {
  switch (type) {
    case WireType::f32:
      return 4;
    case WireType::bf16:
      return 2;
    case WireType::byte:
      return 1;
  }
  throw Error(Exit::bug, "unknown element type");
}

Buffer Buffer::part(int index, int parts) const {
  const std::size_t each = count / parts;
  return {begin() + index * each * bytes_of(type), each, type};
}

Buffer buffer_of(std::span<float> data) {
  return {data.data(), data.size(), WireType::f32};
}

namespace {

class SoloCollectives final : public Collectives {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce_sum(Buffer) override {}
  void reduce_scatter_sum(Buffer data, Buffer own) override { copy(data, own); }
  void all_gather(Buffer own, Buffer all) override { copy(own, all); }
  void broadcast(Buffer, int) override {}

 private:
  static void copy(Buffer from, Buffer to) {
    ensure(from.bytes() == to.bytes(), "collectives: sizes do not match");
    if (from.data != to.data) std::copy_n(from.begin(), from.bytes(), to.begin());
  }
};

}  // namespace

std::unique_ptr<Collectives> make_host_collectives(const Group& group) {
  if (group.size() == 1) return std::make_unique<SoloCollectives>();
  return std::make_unique<MpiCollectives>(group.duplicate());
}

}  // namespace millrace
