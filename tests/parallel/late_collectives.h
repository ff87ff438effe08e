#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "millrace/comm/collectives.h"

namespace millrace {

// Transfers that take as long as they may: each happens when somebody joins it, or one behind it. What is read too
// early is not there yet, and what is overwritten too early travels wrong. Host memory in the part of a GPU's.
class LateCollectives final : public Collectives {
 public:
  // Of all communicators of a rank, in one order.
  struct Order {
    std::vector<std::function<void()>> transfers;
    std::size_t done = 0;
    void run_until(Mark mark) {
      while (done < mark) std::exchange(transfers.at(done++), {})();
    }
  };

  // The order must outlive what is made.
  static MakeCollectives maker(Order& order) {
    return [&order](const Group& group) { return std::make_unique<LateCollectives>(group, order); };
  }
  LateCollectives(const Group& group, Order& order) : collectives_(make_host_collectives(group)), order_(order) {}
  int rank() const override { return collectives_->rank(); }
  int size() const override { return collectives_->size(); }
  void all_reduce_sum(Buffer data) override {
    later([this, data] { collectives_->all_reduce_sum(data); });
  }
  void reduce_scatter_sum(Buffer data, Buffer own) override {
    later([this, data, own] { collectives_->reduce_scatter_sum(data, own); });
  }
  // As some algorithms of NCCL do, also the own part is written, as it was when the transfer began.
  void all_gather(Buffer own, Buffer all) override {
    std::vector<std::byte> copy(own.begin(), own.begin() + own.bytes());
    later([this, own, all, copy = std::move(copy)] {
      std::ranges::copy(copy, own.begin());
      collectives_->all_gather(own, all);
    });
  }
  void broadcast(Buffer data, int root) override {
    later([this, data, root] { collectives_->broadcast(data, root); });
  }
  bool is_done_at_once() const override { return false; }
  Mark mark() override { return order_.transfers.size(); }
  void join(Mark mark) override { order_.run_until(mark); }
  void wait(const std::function<void()>& meanwhile) override {
    while (order_.done < order_.transfers.size()) {
      meanwhile();
      order_.run_until(order_.done + 1);
    }
  }

 private:
  void later(std::function<void()> transfer) { order_.transfers.push_back(std::move(transfer)); }
  std::unique_ptr<Collectives> collectives_;
  Order& order_;
};

}  // namespace millrace
