#include "millrace/comm/collectives.h"

#include <algorithm>

#include "millrace/core/error.h"
#include "mpi_collectives.h"

namespace millrace {
namespace {

class SoloCollectives final : public Collectives {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce_sum(std::span<float>) override {}
  void reduce_scatter_sum(std::span<float> data, std::span<float> own) override {
    ensure(data.size() == own.size(), "reduce_scatter: sizes do not match");
    if (own.data() != data.data()) std::copy(data.begin(), data.end(), own.begin());
  }
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    ensure(all.size() == own.size(), "all_gather: sizes do not match");
    if (own.data() != all.data()) std::copy(own.begin(), own.end(), all.begin());
  }
  void broadcast(std::span<std::byte>, int) override {}
};

}  // namespace

std::unique_ptr<Collectives> make_host_collectives(const Group& group) {
  if (group.size() == 1) return std::make_unique<SoloCollectives>();
  return std::make_unique<MpiCollectives>(group.duplicate());
}

}  // namespace millrace
