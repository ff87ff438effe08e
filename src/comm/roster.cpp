#include "millrace/comm/roster.h"

#include <fmt/format.h>

namespace millrace::roster {
namespace {

std::vector<Member> all_trainers, all_producers;

}  // namespace

void fill(const World& world, const std::string& role) {
  all_trainers.clear();
  all_producers.clear();
  const auto roles = world.group().all_gather_strings(role);
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto place = static_cast<std::size_t>(rank);
    const Member member{rank, world.hosts()[place]};
    if (roles[place] != "producer") all_trainers.push_back(member);
    if (roles[place] != "trainer") all_producers.push_back(member);
  }
}

const std::vector<Member>& trainers() {
  return all_trainers;
}

const std::vector<Member>& producers() {
  return all_producers;
}

std::string describe(const Member& member) {
  return fmt::format("rank {} on {}", member.rank, member.host);
}

}  // namespace millrace::roster
