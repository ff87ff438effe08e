#include "millrace/train/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace millrace {

using Candidate = std::pair<double, std::string_view>;

static double share(double part, double whole) {
  return whole > 0 ? std::min(part / whole, 1.0) : 0;
}

void StageShares::add(const StageShares& other, double factor) {
  read += factor * other.read;
  decode += factor * other.decode;
  transform += factor * other.transform;
  tokenize += factor * other.tokenize;
  encode += factor * other.encode;
  encode_wait += factor * other.encode_wait;
  send += factor * other.send;
  send_wait += factor * other.send_wait;
}

StageShares shares_of(const ProducerReport& spent) {
  StageShares shares;
  shares.read = share(spent.readers.read, spent.reader_seconds);
  shares.decode = share(spent.readers.decode, spent.reader_seconds);
  shares.transform = share(spent.readers.transform, spent.reader_seconds);
  shares.tokenize = share(spent.readers.tokenize, spent.reader_seconds);
  shares.encode = share(spent.encode_seconds, spent.seconds);
  shares.encode_wait = share(spent.encode_wait_seconds, spent.seconds);
  shares.send = share(spent.send_seconds, spent.seconds);
  shares.send_wait = share(spent.send_wait_seconds, spent.seconds);
  return shares;
}

std::string describe(const StageShares& s) {
  return fmt::format(
      "read {:.0f}%, decode {:.0f}%, transform {:.0f}%, tokenize {:.0f}%; encode {:.0f}%, waits {:.0f}%; "
      "send {:.0f}%, waits {:.0f}%",
      100 * s.read, 100 * s.decode, 100 * s.transform, 100 * s.tokenize, 100 * s.encode, 100 * s.encode_wait,
      100 * s.send, 100 * s.send_wait);
}

std::string_view slowest_reading(const StageShares& s) {
  return std::max({Candidate{s.read, "reading"}, Candidate{s.decode, "decoding"}, Candidate{s.transform, "resizing"},
                   Candidate{s.tokenize, "tokenizing"}})
      .second;
}

}  // namespace millrace
