#pragma once
#include <string>
#include <vector>

#include "millrace/comm/world.h"

// Who is who in this run, for messages that name a rank to people.
namespace millrace::roster {

struct Member {
  int rank = -1;  // in the world; -1 = unknown
  std::string host;
};

// `role` of this rank: trainer, producer, or empty = both. Collective over the world.
void fill(const World& world, const std::string& role);

// In the order of their ranks; none before fill.
const std::vector<Member>& trainers();
const std::vector<Member>& producers();

// "rank 3 on n2"
std::string describe(const Member& member);

}  // namespace millrace::roster
