#include "spec.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

namespace millrace::inject {
namespace {

constexpr std::array<std::pair<const char*, Kind>, 14> kinds = {{{"kill", Kind::kill},
                                                                 {"power", Kind::power},
                                                                 {"stop", Kind::stop},
                                                                 {"abort", Kind::abort},
                                                                 {"exit", Kind::exit},
                                                                 {"hang", Kind::hang},
                                                                 {"slow", Kind::slow},
                                                                 {"eio", Kind::eio},
                                                                 {"enospc", Kind::enospc},
                                                                 {"edquot", Kind::edquot},
                                                                 {"short", Kind::shorten},
                                                                 {"nosync", Kind::nosync},
                                                                 {"nan", Kind::nan},
                                                                 {"flip", Kind::flip}}};

constexpr std::array<std::pair<const char*, Call>, 19> calls = {{{"open", Call::open},
                                                                 {"create", Call::create},
                                                                 {"list", Call::list},
                                                                 {"read", Call::read},
                                                                 {"write", Call::write},
                                                                 {"fsync", Call::fsync},
                                                                 {"close", Call::close},
                                                                 {"rename", Call::rename},
                                                                 {"unlink", Call::unlink},
                                                                 {"mkdir", Call::mkdir},
                                                                 {"truncate", Call::truncate},
                                                                 {"mpi-init", Call::mpi_init},
                                                                 {"mpi-send", Call::mpi_send},
                                                                 {"mpi-receive", Call::mpi_receive},
                                                                 {"mpi-test", Call::mpi_test},
                                                                 {"mpi-reduce", Call::mpi_reduce},
                                                                 {"mpi-collective", Call::mpi_collective},
                                                                 {"mpi-gather", Call::mpi_gather},
                                                                 {"mpi-finalize", Call::mpi_finalize}}};

template <class Table, class Value>
const char* name_in(const Table& table, Value value) {
  return std::ranges::find(table, value, [](const auto& entry) { return entry.second; })->first;
}

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw std::invalid_argument("--inject " + text + ": " + why);
}

// Up to `end`, which is dropped; all of it without one.
std::string take_until(std::string& text, char end) {
  const auto at = text.find(end);
  const std::string taken = text.substr(0, at);
  text.erase(0, at == text.npos ? at : at + 1);
  return taken;
}

double parse_number(const std::string& field, const std::string& text) {
  try {
    std::size_t used = 0;
    const double value = std::stod(field, &used);
    if (used == field.size() && value >= 0) return value;
  } catch (const std::exception&) {
  }
  refuse(text, "\"" + field + "\" is not a number");
}

void parse_place(std::string place, Spec& spec) {
  const bool has_path = place.find('=') != place.npos;
  std::string name = take_until(place, '=');
  spec.path = place;
  if (const auto slash = name.find('/'); slash != name.npos) spec.phase = take_until(name, '/');
  const auto* const found = std::ranges::find(calls, name, [](const auto& entry) { return std::string(entry.first); });
  if (found != calls.end()) {
    spec.call = found->second;
  } else if (!spec.phase.empty() || has_path) {
    refuse(spec.text, "\"" + name + "\" is not a group of calls");
  } else if (name != "*") {
    spec.phase = name;
  }
  std::ranges::replace(spec.phase, '-', ' ');
}

}  // namespace

const char* const grammar =
    R"(--inject KIND@RANK:STEP:PLACE[:N[+][:SECONDS]]   a fault; may be repeated, also in MILLRACE_INJECT, by blanks
--inject count=FOLDER                            writes every call to FOLDER/rank-N.tsv: step, phase, call, path

KIND     kill stop abort exit hang   what becomes of the process; killed in a write, it has written half of it
         power                       kill, and what it had not synced is lost: ends of files, renames
         eio enospc edquot           the call fails; one of MPI returns MPI_ERR_OTHER
         short                       reads or writes half of what it was asked to
         slow                        the call takes SECONDS longer
         nosync                      fsync says yes and does nothing, for a `power` that follows
         nan                         the first number of a rank's share of a sum over ranks becomes NaN
         flip                        what a rank has got of another one's part of a tensor changes its signs
RANK     a number or *
STEP     a number or *; 0 = before the first step and after the last
PLACE    PHASE, CALL, CALL=PATH, PHASE/CALL=PATH, or *
  PHASE  as in the files of fault/, with - for blanks: starting, waiting-for-samples, saving, ...
  CALL   open create list read write fsync close rename unlink mkdir truncate
         mpi-init mpi-send mpi-receive mpi-test mpi-reduce mpi-collective mpi-gather mpi-finalize; mpi-reduce are the
         sums of a step's loss and norm, gradients and parcels go by mpi-send and mpi-receive; mpi-gather is when all
         parts of a tensor have come, of which each trainer has summed or updated one; list is a look for the next name
         in a folder
  PATH   the end of the file's path, or any part of it that ends in /; that of a rename, or of a link, which counts as
         one, is the new one. Temporary names are NAME.tmp, event files are events, whatever follows; those that a
         latent cache has in tmp/ are all scratch.h5
N        the N-th such call (1); N+ = and all after it, for SECONDS or for ever
)";

const char* name_of(Kind kind) {
  return name_in(kinds, kind);
}
const char* name_of(Call call) {
  return name_in(calls, call);
}

Spec parse_spec(const std::string& text) {
  Spec spec;
  spec.text = text;
  std::string rest = text;
  const auto kind = take_until(rest, '@');
  const auto* const found = std::ranges::find(kinds, kind, [](const auto& entry) { return std::string(entry.first); });
  if (found == kinds.end()) refuse(text, "\"" + kind + "\" is not a kind of fault");
  spec.kind = found->second;
  if (const auto rank = take_until(rest, ':'); rank != "*") spec.rank = static_cast<int>(parse_number(rank, text));
  if (const auto step = take_until(rest, ':'); step != "*")
    spec.step = static_cast<std::int64_t>(parse_number(step, text));
  const auto place = take_until(rest, ':');
  if (place.empty()) refuse(text, "no place");
  parse_place(place, spec);
  if (spec.kind == Kind::nosync) spec.call = Call::fsync;
  if (spec.kind == Kind::nan) spec.call = Call::mpi_reduce;
  if (spec.kind == Kind::flip) spec.call = Call::mpi_gather;
  if (auto count = take_until(rest, ':'); !count.empty()) {
    spec.onwards = count.back() == '+';
    if (spec.onwards) count.pop_back();
    spec.first = static_cast<std::int64_t>(parse_number(count, text));
    if (spec.first < 1) refuse(text, "calls are counted from 1");
  }
  if (!rest.empty()) spec.seconds = parse_number(rest, text);
  return spec;
}

std::string stable_name(const std::string& path) {
  std::string name = path;
  for (const std::string mark : {".tmp-", ".abandoned-"})
    for (std::size_t at = name.find(mark); at != name.npos; at = name.find(mark, at + 1))
      name.erase(at + mark.size() - 1, std::min(name.find('/', at), name.size()) - at - mark.size() + 1);
  if (const auto at = name.find("events.out.tfevents"); at != name.npos) name.erase(at + 6);
  // 16 random digits, a dash and the process (latents/latent_file.cpp).
  if (const auto at = name.rfind("/tmp/"); at != name.npos && name.ends_with(".h5"))
    if (name.find('-', at) == at + 21 && name.find('/', at + 5) == name.npos)
      name.replace(at + 5, name.npos, "scratch.h5");
  return name;
}

bool is_of(const std::string& path, const std::string& part) {
  if (part.ends_with('/')) return path.find(part) != path.npos;
  return path.ends_with(part);
}

}  // namespace millrace::inject
