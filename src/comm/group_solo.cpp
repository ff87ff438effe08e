#include <limits>

#include "group_backend.h"

namespace millrace {
namespace {

class SoloGroup final : public GroupBackend {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::shared_ptr<GroupBackend> split(int, int) const override { return make_solo_group(); }
  std::shared_ptr<GroupBackend> duplicate() const override { return make_solo_group(); }
  void set_time_limit(double) override {}
  double limit_seconds() const override { return std::numeric_limits<double>::infinity(); }
  void barrier() const override {}
  void broadcast(std::span<std::byte>, int) const override {}
  void all_reduce(std::span<double>, Reduction) const override {}
  void all_reduce(std::span<std::int64_t>, Reduction) const override {}
  std::vector<std::string> gather_strings(const std::string& mine) const override { return {mine}; }
  std::vector<std::string> all_gather_strings(const std::string& mine) const override { return {mine}; }
  Transfer receiver(int, int, std::span<std::byte>, std::shared_ptr<const void>) const override { return nobody(); }
  Transfer sender(int, int, std::span<const std::byte>) const override { return nobody(); }

 private:
  static Transfer nobody() { throw Error(Exit::bug, "a message to another rank in a group of one"); }
};

}  // namespace

std::shared_ptr<GroupBackend> make_solo_group() {
  return std::make_shared<SoloGroup>();
}

}  // namespace millrace
