// A model of the hand-off: producers, rings and trainers as counters, with the program's own order of parcels and
// routing. It tries thousands of random layouts for deadlocks: NOTE [Order of parcels] in produce/producer.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include "millrace/loader/interleaved_reader.h"
#include "millrace/produce/producer.h"
#include "train/routing.h"

namespace millrace {
namespace {

struct Layout {
  int global_batch, stripes, producers, trainers;
  int encoder_batch;    // samples; half of it cached makes batches up to twice as large
  bool cached = false;  // batches of a random size up to twice encoder_batch
  int slots = 4;
  bool all_in_one = false;

  friend std::ostream& operator<<(std::ostream& out, const Layout& l) {
    return out << "batch " << l.global_batch << ", " << l.stripes << " stripes, " << l.producers << " producers, "
               << l.trainers << " trainers, encoder batch " << l.encoder_batch << (l.cached ? ", cached" : "") << ", "
               << l.slots << " slots" << (l.all_in_one ? ", all in one" : "");
  }
};

enum class SendOrder { as_needed, by_stripe };

struct Model {
  struct Producer {
    std::vector<std::uint32_t> stripes;
    TurnOrder made, sent;  // two walks through the same order
    Turn being_made, next;
    std::map<std::uint32_t, int> waiting;  // encoded samples by stripe
    int all_waiting = 0;                   // of all stripes
    std::deque<Turn> outgoing;             // by_stripe: whole parcels of an encoder batch, by stripe number
  };
  struct Trainer {
    std::map<std::uint32_t, int> samples;        // by own stripe
    std::map<int, std::deque<Turn>> ring, held;  // by producer
    bool in_reduction = false;
    int step = 0;
  };

  Model(const Layout& layout, SendOrder send_order, std::uint32_t seed)
      : layout(layout), send_order(send_order), random(seed), per_step(layout.global_batch / layout.stripes) {
    Roles roles;
    roles.all_in_one = layout.all_in_one;
    for (int t = 0; t < layout.trainers; ++t) roles.trainers.push_back(t);
    for (int p = 0; p < layout.producers; ++p) roles.producers.push_back(layout.all_in_one ? p : layout.trainers + p);
    routing = plan_routing(roles, layout.stripes);
    for (int p = 0; p < layout.producers; ++p) {
      const auto stripes = routing.stripes_of_producer(p);
      const auto size = plan_parcel_size(per_step);
      const TurnSize whole{size.samples(), 1};  // as it was: no stripe begins with a shorter parcel
      const TurnOrder order(stripes, send_order == SendOrder::by_stripe ? whole : size);
      producers.push_back({stripes, order, order, {}, {}, {}, 0, {}});
      producers.back().next = producers.back().sent.next();
    }
    for (int t = 0; t < layout.trainers; ++t) {
      trainers.emplace_back();
      for (const auto stripe : routing.stripes_of_trainer(t)) trainers.back().samples[stripe] = 0;
    }
  }

  // Sends one parcel, or encodes a batch when no whole parcel is left; false when the ring is full.
  bool work(Producer& producer, int self) {
    if (send_order == SendOrder::by_stripe) return work_by_stripe(producer, self);
    if (producer.waiting[producer.next.stripe] < producer.next.samples) return encode(producer);
    if (!try_send(self, producer.next)) return false;
    producer.waiting[producer.next.stripe] -= producer.next.samples;
    producer.all_waiting -= producer.next.samples;
    producer.next = producer.sent.next();
    return true;
  }

  bool work_by_stripe(Producer& producer, int self) {
    if (producer.outgoing.empty()) {
      encode(producer);
      for (auto& [stripe, samples] : producer.waiting)
        for (const int whole = plan_parcel_size(per_step).samples(); samples >= whole; samples -= whole) {
          producer.outgoing.push_back({stripe, whole});
          producer.all_waiting -= whole;
        }
      return true;
    }
    if (!try_send(self, producer.outgoing.front())) return false;
    producer.outgoing.pop_front();
    return true;
  }

  bool encode(Producer& producer) {
    int samples = layout.encoder_batch;
    if (layout.cached) samples += static_cast<int>(random() % static_cast<unsigned>(layout.encoder_batch + 1));
    producer.all_waiting += samples;
    max_waiting = std::max(max_waiting, producer.all_waiting);
    while (samples > 0) {
      if (producer.being_made.samples == 0) producer.being_made = producer.made.next();
      const int made = std::min(samples, producer.being_made.samples);
      producer.being_made.samples -= made;
      producer.waiting[producer.being_made.stripe] += made;
      samples -= made;
    }
    return true;
  }

  bool try_send(int producer, const Turn& parcel) {
    Trainer& to = trainers[routing.trainer_of_stripe[parcel.stripe]];
    if (static_cast<int>(to.ring[producer].size() + to.held[producer].size()) >= layout.slots) return false;
    to.ring[producer].push_back(parcel);
    return true;
  }

  bool lacks(const Trainer& trainer, int producer) const {
    return std::ranges::any_of(trainer.samples, [&](const auto& line) {
      return routing.producer_of_stripe[line.first] == producer && line.second < per_step;
    });
  }

  // What BatchReceiver::next does with one parcel; false when none is there that it may take.
  bool receive(Trainer& trainer) {
    if (trainer.in_reduction) return false;
    if (std::ranges::all_of(trainer.samples, [&](const auto& line) { return line.second >= per_step; })) {
      for (auto& [stripe, samples] : trainer.samples) samples -= per_step;
      trainer.in_reduction = true;
      return true;
    }
    for (auto& [producer, parcels] : trainer.held)
      if (!parcels.empty() && lacks(trainer, producer)) return unpack(trainer, parcels);
    for (auto& [producer, parcels] : trainer.ring) {
      if (parcels.empty()) continue;
      if (lacks(trainer, producer)) return unpack(trainer, parcels);
      trainer.held[producer].push_back(parcels.front());
      parcels.pop_front();
      return true;
    }
    return false;
  }

  bool unpack(Trainer& trainer, std::deque<Turn>& parcels) {
    auto& samples = trainer.samples[parcels.front().stripe];
    samples += parcels.front().samples;
    max_samples = std::max(max_samples, samples);
    parcels.pop_front();
    return true;
  }

  bool reduce() {
    if (!std::ranges::all_of(trainers, [](const Trainer& trainer) { return trainer.in_reduction; })) return false;
    for (Trainer& trainer : trainers) trainer.in_reduction = false, ++trainer.step;
    return true;
  }

  // Whoever can do something does it, in a random order. The steps done before nobody can, at most `steps`.
  int run(int steps) {
    const int actors = layout.producers + layout.trainers;
    std::vector<int> turn(actors);
    for (int i = 0; i < actors; ++i) turn[i] = i;
    while (trainers.front().step < steps) {
      std::ranges::shuffle(turn, random);
      bool moved = false;
      for (const int actor : turn)
        moved |= actor < layout.producers ? work(producers[actor], actor) : receive(trainers[actor - layout.producers]);
      moved |= reduce();
      if (!moved) break;
    }
    return trainers.front().step;
  }

  Layout layout;
  SendOrder send_order;
  std::mt19937 random;
  int per_step;
  Routing routing;
  std::vector<Producer> producers;
  std::vector<Trainer> trainers;
  int max_samples = 0;  // of one stripe in a trainer
  int max_waiting = 0;  // encoded samples in a producer
};

constexpr int steps = 40;  // five whole parcels of every stripe

// Layouts that stood still in step 1 or 25 when the parcels of an encoder batch were sent by stripe number.
const Layout once_stuck[] = {{32, 32, 1, 2, 120},   {32, 32, 2, 2, 120},    {64, 64, 2, 2, 120},
                             {128, 128, 4, 4, 120}, {512, 512, 4, 4, 120},  {1024, 512, 4, 4, 120},
                             {8, 8, 4, 2, 120},     {2048, 512, 4, 4, 240}, {8, 8, 2, 2, 120},
                             {32, 32, 1, 3, 120},   {512, 512, 4, 3, 120},  {64, 64, 2, 3, 120}};

TEST(HandoffModel, FindsTheDeadlockOfParcelsByStripeNumber) {
  for (const auto& layout : once_stuck) EXPECT_LT(Model(layout, SendOrder::by_stripe, 1).run(steps), steps) << layout;
}

TEST(HandoffModel, NoLayoutStandsStillWhenParcelsLeaveAsTheyAreNeeded) {
  for (const auto& layout : once_stuck) EXPECT_EQ(Model(layout, SendOrder::as_needed, 1).run(steps), steps) << layout;
}

Layout random_layout(std::mt19937& random) {
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  Layout layout{};
  layout.trainers = pick(1, 6);
  layout.stripes = pick(0, 2) ? pick(layout.trainers, 12 * layout.trainers) : layout.trainers * pick(1, 12);
  layout.global_batch = layout.stripes * (pick(0, 2) ? pick(1, 4) : pick(5, 70));
  layout.all_in_one = pick(0, 4) == 0;
  layout.producers = layout.all_in_one ? layout.trainers : pick(1, std::min(7, layout.stripes));
  layout.encoder_batch = pick(1, 250);
  layout.cached = pick(0, 1) == 1;
  layout.slots = pick(1, 4);
  return layout;
}

TEST(HandoffModel, ThousandsOfLayoutsAreBoundedAndNeverStandStill) {
  std::mt19937 random(20240917);
  int uneven = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto layout = random_layout(random);
    uneven += layout.stripes % layout.trainers != 0;
    Model model(layout, SendOrder::as_needed, static_cast<std::uint32_t>(i));
    ASSERT_EQ(model.run(steps), steps) << "layout " << i << ": " << layout;
    const int parcel = plan_parcel_size(model.per_step).samples();
    EXPECT_LE(model.max_samples, parcel + model.per_step) << "layout " << i << ": " << layout;
    // What is encoded and has not left: parcels that are begun, and those of the batch that was encoded last.
    EXPECT_LE(model.max_waiting, 2 * layout.encoder_batch + parcel) << "layout " << i << ": " << layout;
  }
  EXPECT_GT(uneven, 1000) << "layouts whose trainers have unequal shares";
}

}  // namespace
}  // namespace millrace
