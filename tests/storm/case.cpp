#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <numeric>

#include "case.h"

namespace millrace::storm {
namespace {

std::vector<int> divisors(int n) {
  std::vector<int> found;
  for (int i = 1; i <= n; ++i)
    if (n % i == 0) found.push_back(i);
  return found;
}

DataSet draw_data(Dice& dice) {
  DataSet data;
  data.archives = dice.of<Archives>({Archives::tar, Archives::tar, Archives::tar, Archives::tar_gz, Archives::parquet});
  const int archives = dice.between(data.archives == Archives::tar_gz ? 4 : 1, 9),
            total = dice.chance(0.3) ? dice.between(60, 75) : dice.between(76, 150);
  data.rows.assign(static_cast<std::size_t>(archives), 1);
  for (int left = total - archives; left > 0; --left) ++data.rows[static_cast<std::size_t>(dice.below(archives))];
  if (dice.chance(0.5)) data.bad_share = 0.15;
  data.filtered = dice.chance(0.3);
  data.cut_short = data.archives != Archives::parquet && dice.chance(0.25);
  return data;
}

// Every archive can feed a stripe; those that can be read from any row feed as many as they have rows.
int max_stripes(const DataSet& data) {
  if (data.archives == Archives::tar_gz) return static_cast<int>(data.rows.size());
  return std::accumulate(data.rows.begin(), data.rows.end(), 0) - (data.cut_short ? 1 : 0);
}

Layout draw_layout(Dice& dice, int stripes, int batch) {
  while (true) {
    Layout layout;
    const int trainers = dice.of<int>({1, 1, 2, 2, 2, 3, 4, 5});
    layout.producers = trainers == 5 || dice.chance(0.3) ? 0 : dice.between(1, 5 - trainers);
    layout.ranks = trainers + layout.producers;
    if (trainers > stripes || layout.producers > stripes) continue;
    // Whole micro-batches are asked for where shares are equal.
    const auto micros = divisors(stripes % trainers ? batch : batch / trainers);
    layout.micro = std::max(dice.of(micros), dice.of(micros));  // small ones take long
    layout.encode_batch = dice.of<int>({1, 2, 3, 5, 7, 8, 16, 31, 64, 100, 120, 120, 120, 120, 150, 200});
    layout.ddp = dice.chance(0.4);
    layout.recompute = dice.chance(0.15);
    layout.threads = dice.of<int>({1, 1, 2, 4});
    return layout;
  }
}

// One that computes alike: only the producers may be others.
Layout draw_producers(Dice& dice, Layout layout, int stripes) {
  const int trainers = layout.trainers();
  layout.producers = dice.chance(0.3) ? 0 : dice.between(1, std::max(1, 5 - trainers));
  if (layout.producers > stripes) layout.producers = 0;
  layout.ranks = trainers + layout.producers;
  layout.threads = dice.between(1, 4);
  return layout;
}

// Mostly in the life's own share of the steps: a signal that comes late leaves something for the lives that follow.
void draw_end(Dice& dice, Life& life, int from, int share_end, int steps) {
  life.step = dice.between(from + 1, std::max(from + 1, dice.chance(0.8) ? share_end : steps - 1));
  life.rank = dice.below(life.layout.ranks);
  const int kind = dice.below(10);
  if (kind < 3) {
    life.end = Life::End::stop;
  } else if (kind < 5) {
    life.end = Life::End::signal;
    life.signal = dice.chance(0.5) ? SIGUSR1 : SIGTERM;
  } else {
    life.end = kind < 9 ? Life::End::kill_at_step : Life::End::kill_at_time;
    life.seconds = 0.2 + 2 * dice.share();
    life.signal = SIGKILL;
  }
}

std::vector<Life> draw_lives(Dice& dice, const Case& drawn) {
  enum class Changes { none, producers, all } changes = Changes::all;
  if (dice.chance(0.6)) changes = dice.chance(0.5) ? Changes::none : Changes::producers;
  std::vector<Life> lives(static_cast<std::size_t>(dice.between(2, 5)));
  const int stripes = drawn.stripe_count();
  for (std::size_t i = 0; i < lives.size(); ++i) {
    Life& life = lives[i];
    if (i == 0 || changes == Changes::all) {
      life.layout = draw_layout(dice, stripes, drawn.batch);
    } else {
      life.layout = lives[0].layout;
      if (changes == Changes::producers) life.layout = draw_producers(dice, life.layout, stripes);
    }
    life.save_every = dice.of<int>({1, 1, 2, 2, 3, 4});
    life.keep = dice.between(1, 3);
    life.mpirun = life.layout.ranks > 1 || dice.chance(0.5);
    life.step = drawn.steps;
    if (i + 1 == lives.size()) break;
    const auto share_end = [&](std::size_t of) {
      return static_cast<int>(of) * drawn.steps / static_cast<int>(lives.size());
    };
    draw_end(dice, life, share_end(i), share_end(i + 1), drawn.steps);
  }
  return lives;
}

void draw_cache(Dice& dice, Case& drawn) {
  drawn.encodings = dice.of<Encodings>({Encodings::online, Encodings::online, Encodings::online, Encodings::full_cache,
                                        Encodings::half_cache, Encodings::killed_cache, Encodings::write_through,
                                        Encodings::latents});
  drawn.cache_ranks = dice.between(1, 4);
  drawn.rows_per_file = dice.of<int>({3, 10, 50, 5000});
  drawn.kill_preprocess =
      drawn.encodings == Encodings::killed_cache || (drawn.encodings == Encodings::latents && dice.chance(0.5));
  drawn.augmented = drawn.encodings == Encodings::online && dice.chance(0.5);
}

std::string name_of(Archives archives) {
  return archives == Archives::tar ? "tar" : archives == Archives::tar_gz ? "tar.gz" : "Parquet";
}

std::string name_of(Encodings encodings) {
  switch (encodings) {
    case Encodings::online:
      return "online";
    case Encodings::full_cache:
      return "cached";
    case Encodings::half_cache:
      return "half cached";
    case Encodings::killed_cache:
      return "cached by a killed preprocess";
    case Encodings::write_through:
      return "write-through cache";
    case Encodings::latents:
      return "latents";
  }
  return "";
}

}  // namespace

int Case::total_rows() const {
  return std::accumulate(data.rows.begin(), data.rows.end(), 0);
}

int Case::stripe_count() const {
  if (stripes) return *stripes;
  int count = 1;
  for (const int divisor : divisors(batch))
    if (divisor <= max_stripes(data)) count = divisor;
  return count;
}

bool Case::computed_alike() const {
  return std::ranges::all_of(lives, [&](const Life& life) { return life.layout.computes_like(lives[0].layout); });
}

Case draw_case(std::uint64_t seed) {
  Dice dice(seed);
  Case drawn;
  drawn.seed = seed;
  drawn.data = draw_data(dice);
  drawn.batch = dice.of<int>({4, 6, 8, 8, 9, 10, 12, 12, 15, 16, 20, 24, 24, 30, 32, 32, 32, 36, 45, 48, 48});
  if (dice.chance(0.4)) {
    auto choices = divisors(drawn.batch);
    std::erase_if(choices, [&](int stripes) { return stripes > max_stripes(drawn.data); });
    if (choices.size() > 1 && dice.chance(0.7)) choices.erase(choices.begin());  // one stripe has one trainer
    drawn.stripes = dice.of(choices);
  }
  drawn.block = dice.of<int>({1, 2, 3, 5, 8, 16, 128});
  // Small batches take more steps to leave the first epoch. A signal comes some steps late: each life needs a few.
  drawn.steps = dice.between(16, drawn.batch < 16 ? 56 : 36);
  drawn.ema = dice.chance(0.6);
  draw_cache(dice, drawn);
  drawn.lives = draw_lives(dice, drawn);
  return drawn;
}

std::string describe(const Layout& layout) {
  const auto ranks = layout.producers ? fmt::format("{}T+{}P", layout.trainers(), layout.producers)
                                      : fmt::format("{} all-in-one", layout.ranks);
  return fmt::format("{} micro {} encode {} threads {}{}{}", ranks, layout.micro, layout.encode_batch, layout.threads,
                     layout.ddp ? " ddp" : "", layout.recompute ? " recompute" : "");
}

std::string describe(const Life& life) {
  std::string end;
  switch (life.end) {
    case Life::End::finish:
      end = "finish";
      break;
    case Life::End::stop:
      end = fmt::format("stop at {}", life.step);
      break;
    case Life::End::signal:
      end = fmt::format("{} to rank {} at {}", life.signal == SIGTERM ? "TERM" : "USR1", life.rank, life.step);
      break;
    case Life::End::kill_at_step:
      end = fmt::format("kill rank {} at {}", life.rank, life.step);
      break;
    case Life::End::kill_at_time:
      end = fmt::format("kill rank {} after {:.1f} s", life.rank, life.seconds);
      break;
  }
  return fmt::format("{} save {} keep {}: {}", describe(life.layout), life.save_every, life.keep, end);
}

std::string describe(const Case& drawn) {
  const DataSet& data = drawn.data;
  std::string text =
      fmt::format("{} {} rows in {}{}{}{}, {}", name_of(data.archives), drawn.total_rows(), fmt::join(data.rows, "+"),
                  data.bad_share > 0 ? ", bad rows" : "", data.filtered ? ", filtered" : "",
                  data.cut_short ? ", cut short" : "", name_of(drawn.encodings));
  if (drawn.encodings != Encodings::online && drawn.encodings != Encodings::write_through)
    text += fmt::format(" ({} ranks, {} rows a file{})", drawn.cache_ranks, drawn.rows_per_file,
                        drawn.kill_preprocess ? ", killed once" : "");
  text += fmt::format("; batch {} in {} stripes{}, blocks of {}, {} steps{}{}", drawn.batch, drawn.stripe_count(),
                      drawn.stripes ? "" : " (auto)", drawn.block, drawn.steps, drawn.ema ? ", EMA" : "",
                      drawn.augmented ? ", augmented" : "");
  for (const Life& life : drawn.lives) text += " | " + describe(life);
  return text;
}

}  // namespace millrace::storm
