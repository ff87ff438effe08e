#include "millrace/core/log.h"

#include <fmt/chrono.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <boost/log/core.hpp>
#include <boost/log/expressions/formatter.hpp>
#include <boost/log/keywords/severity.hpp>
#include <boost/log/sinks/basic_sink_backend.hpp>
#include <boost/log/sinks/sync_frontend.hpp>
#include <boost/log/sources/record_ostream.hpp>
#include <boost/log/sources/severity_logger.hpp>
#include <boost/smart_ptr/make_shared.hpp>
#include <chrono>
#include <cstdio>
#include <mutex>

#include "millrace/core/clock.h"
#include "millrace/core/files.h"
#include "millrace/core/phase.h"
#include "millrace/core/secrets.h"
#include "millrace/core/visible.h"

namespace millrace::log {

namespace {

namespace logging = boost::log;
namespace sinks = boost::log::sinks;

// stderr, where a redrawn progress line may stand below everything else. What cannot be written (a terminal that was
// closed, a full disk) is lost: no run ends for that.
class Terminal {
 public:
  static Terminal& instance() {
    static Terminal terminal;
    return terminal;
  }

  void line(const std::string& text) {
    std::lock_guard lock(mutex_);
    if (!progress_.empty()) std::fputs(clear, stderr);
    std::fputs((text + "\n").c_str(), stderr);
    draw();
  }

  void progress(std::string_view text) {
    std::lock_guard lock(mutex_);
    if (!progress_.empty()) std::fputs(clear, stderr);
    progress_ = text;
    draw();
  }

  bool is_tty() const { return is_tty_; }

 private:
  static constexpr const char* clear = "\r\033[K";

  void draw() {
    // A line longer than the window would wrap, and only its last part could be redrawn.
    std::fputs(progress_.substr(0, columns() - 1).c_str(), stderr);
    std::fflush(stderr);
  }

  static std::size_t columns() {
    winsize size{};
    const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return known ? size.ws_col : 80;
  }

  const bool is_tty_ = ::isatty(STDERR_FILENO) != 0;
  std::mutex mutex_;
  std::string progress_;
};

class ConsoleBackend : public sinks::basic_formatted_sink_backend<char, sinks::synchronized_feeding> {
 public:
  void consume(const logging::record_view&, const string_type& text) { Terminal::instance().line(text); }
};

// Lines on a disk that may be full for a while: those of that time are missing, no later one. (Boost's backend for
// streams writes nothing more once a write has failed.)
class FileBackend : public sinks::basic_formatted_sink_backend<char, sinks::synchronized_feeding> {
 public:
  explicit FileBackend(const std::string& path) : fd_(open_to_append(path)) {}
  ~FileBackend() { ::close(fd_); }
  FileBackend(const FileBackend&) = delete;
  FileBackend& operator=(const FileBackend&) = delete;

  void consume(const logging::record_view&, const string_type& text) { add(text); }

  void add(const std::string& text) {
    const auto gap = missing_ ? fmt::format("({} lines could not be written)\n", missing_) : "";
    missing_ = write((is_torn_ ? "\n" : "") + gap + text + "\n") ? 0 : missing_ + 1;
  }

 private:
  // True when all of it is in the file.
  bool write(std::string_view text) {
    auto rest = text;
    const bool is_whole = write_all(fd_, rest);
    if (rest.size() < text.size()) is_torn_ = !is_whole;
    return is_whole;
  }

  const int fd_;
  std::size_t missing_ = 0;  // lines, since the last one that was written
  bool is_torn_ = false;     // a part of a line stands at the end
};

const char* name_of(Level level) {
  switch (level) {
    case Level::debug:
      return "debug";
    case Level::info:
      return "info";
    case Level::warning:
      return "warning";
    case Level::error:
      break;
  }
  return "error";
}

std::string who_prefix(const Options& options) {
  return options.role.empty() ? "" : fmt::format(" {}/{}", options.role, options.rank);
}

std::string time_of_day() {
  const auto now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:%H:%M:%S}", local);
}

struct Line {
  std::string time;
  Level level;
  std::int64_t step;
  std::string text;
};

Line line_of(const logging::record_view& record, std::string time) {
  return {std::move(time), *logging::extract<Level>("Severity", record), phase::step,
          *logging::extract<std::string>("Message", record)};
}

// `TIME level role/rank step N text`
std::string format(const Line& line, const std::string& who, std::string (*show)(std::string_view)) {
  const auto step = line.step > 0 ? fmt::format(" step {}", line.step) : "";
  return fmt::format("{} {}{}{} {}", line.time, name_of(line.level), who, step, show(without_secrets(line.text)));
}

auto make_formatter(const Options& options, std::string (*time)(), std::string (*show)(std::string_view)) {
  return [who = who_prefix(options), time, show](const logging::record_view& record, logging::formatting_ostream& out) {
    out << format(line_of(record, time()), who, show);
  };
}

boost::shared_ptr<sinks::sink> console_sink;

void add_console(const Options& options) {
  auto sink = boost::make_shared<sinks::synchronous_sink<ConsoleBackend>>();
  // For somebody who watches, the clock on the wall; a job's output is read weeks later, as files are.
  sink->set_formatter(make_formatter(options, on_terminal() ? time_of_day : utc_now, visible));
  // The details are in the files; a person watching wants to see what matters.
  sink->set_filter([](const logging::attribute_value_set& values) {
    return *logging::extract<Level>("Severity", values) != Level::debug;
  });
  logging::core::get()->add_sink(sink);
  console_sink = sink;
}

// What a start has chosen, found changed or passed over before there is a file.
class EarlyLines : public sinks::basic_sink_backend<sinks::synchronized_feeding> {
 public:
  void consume(const logging::record_view& record) {
    constexpr std::size_t most = 1000;
    const std::lock_guard lock(mutex_);
    if (lines_.size() < most) lines_.push_back(line_of(record, utc_now()));
  }

  std::vector<Line> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;  // a thread may still be in a sink that was removed
  std::vector<Line> lines_;
};

const boost::shared_ptr<EarlyLines> early_lines = boost::make_shared<EarlyLines>();

void add_file(const Options& options, const boost::shared_ptr<FileBackend>& file) {
  // Each record is a line there, so that nobody's file name passes for a record of its own.
  for (const auto& line : early_lines->take()) file->add(format(line, who_prefix(options), visible_line));
  auto sink = boost::make_shared<sinks::synchronous_sink<FileBackend>>(file);
  sink->set_formatter(make_formatter(options, utc_now, visible_line));
  logging::core::get()->add_sink(sink);
}

bool has_file = false, awaits_file = false;

// Without a sink of our own Boost.Log would fall back to one that prints everything.
void enable_with_sinks() {
  logging::core::get()->set_logging_enabled(console_sink || has_file || awaits_file);
}

void replace_sinks(const Options& options) {
  // Those of before stay where it cannot be opened.
  const auto file = options.file.empty() ? nullptr : boost::make_shared<FileBackend>(options.file);
  has_file = file != nullptr;
  awaits_file = options.awaits_file;
  logging::core::get()->remove_all_sinks();
  console_sink.reset();
  if (options.console) add_console(options);
  if (file) add_file(options, file);
  early_lines->take();
  if (awaits_file) logging::core::get()->add_sink(boost::make_shared<sinks::synchronous_sink<EarlyLines>>(early_lines));
  enable_with_sinks();
}

std::once_flag default_sinks;

// What the watchdog is told: a folder that is away holds whoever writes a line.
struct Writing {
  Writing() { ++phase::log_writers; }
  ~Writing() { --phase::log_writers; }
};

}  // namespace

void init(const Options& options) {
  std::call_once(default_sinks, [] {});
  replace_sinks(options);
}

void close_console() {
  std::call_once(default_sinks, [] {});
  if (console_sink) logging::core::get()->remove_sink(console_sink);
  console_sink.reset();
  enable_with_sinks();
}

void set_step(std::int64_t step) {
  phase::step = step;
}

void flush() {
  logging::core::get()->flush();
  std::fflush(stderr);
}

void write(Level level, std::string_view text) {
  const Writing writing;
  std::call_once(default_sinks, [] { replace_sinks({}); });
  static logging::sources::severity_logger_mt<Level> logger;
  if (auto record = logger.open_record(logging::keywords::severity = level)) {
    logging::record_ostream out(record);
    out << text;
    out.flush();
    logger.push_record(std::move(record));
  }
}

void progress(std::string_view text) {
  if (on_terminal()) Terminal::instance().progress(text);
}

bool on_terminal() {
  return Terminal::instance().is_tty();
}

}  // namespace millrace::log
