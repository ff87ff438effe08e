#include "millrace/comm/group.h"

#include "group_backend.h"

namespace millrace {

Group::Group() : backend_(make_solo_group()) {}

int Group::rank() const {
  return backend_->rank();
}
int Group::size() const {
  return backend_->size();
}
Group Group::split(int color, int key) const {
  return Group(backend_->split(color, key));
}
Group Group::duplicate() const {
  return Group(backend_->duplicate());
}
void Group::set_time_limit(double seconds) const {
  backend_->set_time_limit(seconds);
}
double Group::time_limit() const {
  return backend_->limit_seconds();
}
void Group::barrier() const {
  backend_->barrier();
}

void Group::broadcast(std::span<std::byte> bytes, int root) const {
  backend_->broadcast(bytes, root);
}

std::string Group::broadcast(std::string text, int root) const {
  std::int64_t length = static_cast<std::int64_t>(text.size());
  broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  text.resize(static_cast<std::size_t>(length));
  broadcast(std::as_writable_bytes(std::span(text)), root);
  return text;
}

void Group::all_reduce_sum(std::span<double> values) const {
  backend_->all_reduce(values, Reduction::sum);
}
void Group::all_reduce_max(std::span<double> values) const {
  backend_->all_reduce(values, Reduction::max);
}
void Group::all_reduce_sum(std::span<std::int64_t> values) const {
  backend_->all_reduce(values, Reduction::sum);
}
void Group::all_reduce_max(std::span<std::int64_t> values) const {
  backend_->all_reduce(values, Reduction::max);
}
std::int64_t Group::largest(std::int64_t mine) const {
  all_reduce_max(std::span(&mine, 1));
  return mine;
}

std::vector<std::string> Group::gather_strings(const std::string& mine) const {
  return backend_->gather_strings(mine);
}
std::vector<std::string> Group::all_gather_strings(const std::string& mine) const {
  return backend_->all_gather_strings(mine);
}
Transfer Group::receiver(int from, int tag, std::span<std::byte> into, std::shared_ptr<const void> owner) const {
  return backend_->receiver(from, tag, into, std::move(owner));
}
Transfer Group::sender(int to, int tag, std::span<const std::byte> from) const {
  return backend_->sender(to, tag, from);
}

}  // namespace millrace
