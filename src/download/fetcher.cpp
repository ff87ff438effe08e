#include "millrace/download/fetcher.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "http_get.h"
#include "millrace/core/hash.h"
#include "millrace/core/log.h"
#include "millrace/io/net/http.h"
#include "opt_out.h"
#include "robots.h"
#include "url.h"

namespace millrace {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int max_hops = 5;
constexpr double max_retry_after_seconds = 10;       // that a row waits for
constexpr std::size_t max_robots_bytes = 500 << 10;  // RFC 9309, 2.5
constexpr int max_silent_rows = 5;                   // with all their attempts

// One URL on its way: through redirects and attempts, to a body or a failure.
struct Job {
  std::uint64_t ticket = 0;
  std::string robots_of;  // the origin whose robots.txt this is; empty = an image
  std::string first_url;
  Url url;  // of this hop
  int hops = 0, attempt = 0;
  double seconds_left = 0;    // of this attempt
  bool host_is_shut = false;  // see Fetched
  std::unique_ptr<HttpGet> get;
};
using JobPtr = std::unique_ptr<Job>;

// Transfers from one host, and those that wait for one of them to end.
struct Host {
  int active = 0;
  std::unordered_map<std::string, int> silent;  // by origin: the last so many attempts ended without an answer
  std::deque<JobPtr> waiting;
  Clock::time_point not_before;             // it asked to be left alone until then
  double slowness = 0;                      // seconds of an attempt and the pause behind it, on average
  std::uint64_t came = 0, came_before = 0;  // rows; those of all hosts before its first one
};

// Why an origin is not asked, and until when.
struct Shut {
  Clock::time_point until;
  Failure why;
};

}  // namespace

// A job goes: route (checks the URL, asks for robots.txt first) -> enqueue (waits for a place at its host) -> start ->
// finish (a redirect is routed again, a failure may come back later, the rest is done).
class Fetcher::Impl {
 public:
  explicit Impl(FetchOptions options) : options_(std::move(options)), multi_(open_transfers()) {
    curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(options_.connections));
  }
  ~Impl() {
    for (auto& [handle, job] : active_) curl_multi_remove_handle(multi_, handle);
    active_.clear();
    curl_multi_cleanup(multi_);
  }

  void add(std::uint64_t ticket, const std::string& url) {
    ++pending_;
    auto job = std::make_unique<Job>();
    job->ticket = ticket;
    job->first_url = url;
    begin_attempt(std::move(job));
  }

  std::size_t pending() const { return pending_; }
  std::size_t transfers() const { return active_.size(); }
  std::size_t hosts() const { return hosts_.size(); }

  std::vector<Fetched> poll(std::chrono::milliseconds wait, bool start_new) {
    advance(start_new);
    if (done_.empty()) {
      curl_multi_poll(multi_, nullptr, 0, static_cast<int>(time_to_wait(wait).count()), nullptr);
      advance(start_new);
    }
    pending_ -= done_.size();
    return std::exchange(done_, {});
  }

  void forgive_hosts() {
    shut_.clear();
    robots_.forget_failures();
    for (auto& [name, host] : hosts_) {
      host.silent.clear();
      host.slowness = 0;
    }
  }

  // NOTE [Hosts that are slow]: a host that answers, but takes a third of the time for an attempt each time, or asks
  // for pauses, ends up with most of the rows that wait, and connections idle. Where it holds up rows that could be
  // read, its own fail for a while. A list that has hardly any other hosts goes at their pace.
  void let_slow_hosts_go() {
    constexpr double small_share = 0.25;  // of the rows
    std::size_t waiting = 0;
    double share = 0;
    std::vector<Host*> slow;
    const std::string* first = nullptr;
    std::size_t most = 0;
    for (auto& [name, host] : hosts_) {
      if (host.waiting.empty() || host.slowness <= options_.timeout_seconds / 3) continue;
      slow.push_back(&host);
      waiting += host.waiting.size();
      share +=
          static_cast<double>(host.came) / static_cast<double>(std::max<std::uint64_t>(1, came_ - host.came_before));
      if (host.waiting.size() <= most) continue;
      first = &name;
      most = host.waiting.size();
    }
    if (2 * waiting <= pending_ || share > small_share) return;
    const auto who = slow.size() == 1 ? *first : fmt::format("{} and {} other slow hosts", *first, slow.size() - 1);
    log::warning(
        "{} held up all the rest: the {} rows that wait there fail, and those of the next {} minutes; raise "
        "download.per_host if that can be borne, or download.timeout",
        who, waiting, std::chrono::floor<std::chrono::minutes>(options_.host_shut_for).count());
    std::vector<JobPtr> given_up;
    for (Host* const host : slow)
      for (JobPtr& job : std::exchange(host->waiting, {})) given_up.push_back(std::move(job));
    for (const JobPtr& job : given_up) shut(job->url.origin, slowness_);
    for (JobPtr& job : given_up) give_up_at_shut_host(std::move(job), slowness_);
  }

 private:
  void advance(bool start_new) {
    for (const auto now = Clock::now(); !delayed_.empty() && delayed_.begin()->first <= now;) {
      JobPtr job = std::move(delayed_.begin()->second);
      delayed_.erase(delayed_.begin());
      begin_attempt(std::move(job));
    }
    end_pauses();
    if (start_new) start_ready();
    int running = 0;
    curl_multi_perform(multi_, &running);
    int left = 0;
    while (const CURLMsg* const message = curl_multi_info_read(multi_, &left)) {
      if (message->msg == CURLMSG_DONE) finish(message->easy_handle, message->data.result);
    }
    if (start_new) start_ready();
  }

  std::chrono::milliseconds time_to_wait(std::chrono::milliseconds wait) const {
    auto due = Clock::now() + wait;
    if (!delayed_.empty()) due = std::min(due, delayed_.begin()->first);
    if (!paused_.empty()) due = std::min(due, paused_.begin()->first);
    return std::clamp(std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now()), std::chrono::milliseconds(0),
                      wait);
  }

  void begin_attempt(JobPtr job) {
    job->hops = 0;
    job->seconds_left = options_.timeout_seconds;
    const std::string url = job->first_url;
    route(std::move(job), url);
  }

  void route(JobPtr job, const std::string& text) {
    auto url = parse_url(text);
    if (const auto* const failure = std::get_if<Failure>(&url)) return give_up(std::move(job), *failure);
    job->url = std::get<Url>(std::move(url));
    if (!options_.opt_out || !job->robots_of.empty()) return enqueue(std::move(job));

    const std::string origin = job->url.origin;
    if (const auto waiting = waiting_for_robots_.find(origin); waiting != waiting_for_robots_.end()) {
      waiting->second.push_back(std::move(job));
    } else if (const auto* const verdict = robots_.find(origin, Clock::now())) {
      obey(*verdict, std::move(job));
    } else {
      waiting_for_robots_[origin].push_back(std::move(job));
      ask_for_robots(origin);
    }
  }

  void ask_for_robots(const std::string& origin) {
    auto job = std::make_unique<Job>();
    job->robots_of = origin;
    job->first_url = origin + "/robots.txt";
    begin_attempt(std::move(job));
  }

  void obey(const RobotsCache::Verdict& verdict, JobPtr job) {
    if (const auto* const failure = std::get_if<Failure>(&verdict)) {
      job->host_is_shut = is_shut_by(*failure);
      done(std::move(job), *failure);
    } else if (!std::get<Robots>(verdict).allows(job->url.path)) {
      done(std::move(job), Failure{FailureKind::robots, "disallowed"});
    } else {
      enqueue(std::move(job));
    }
  }

  void enqueue(JobPtr job) {
    if (const Failure* const why = why_shut(job->url.origin)) return give_up_at_shut_host(std::move(job), *why);
    const std::string name = job->url.host;
    const auto [host, is_new] = hosts_.try_emplace(name);
    if (is_new) host->second.came_before = came_;
    if (job->attempt == 0 && job->robots_of.empty()) {
      ++host->second.came;
      ++came_;
    }
    host->second.waiting.push_back(std::move(job));
    ready_.push_back(name);
  }

  void start_ready() {
    const auto now = Clock::now();
    while (!ready_.empty() && active_.size() < static_cast<std::size_t>(options_.connections)) {
      const std::string name = std::move(ready_.front());
      ready_.pop_front();
      const auto host = hosts_.find(name);
      if (host == hosts_.end() || host->second.waiting.empty()) continue;
      if (host->second.active >= options_.per_host) continue;  // `leave_host` brings it back
      if (now < host->second.not_before) continue;             // `end_pauses` does
      JobPtr job = std::move(host->second.waiting.front());
      host->second.waiting.pop_front();
      ++host->second.active;
      start(std::move(job));
    }
  }

  void start(JobPtr job) {
    const bool robots = !job->robots_of.empty();
    job->get = std::make_unique<HttpGet>(
        options_, job->url,
        HttpGet::Limits{job->seconds_left, robots ? max_robots_bytes : options_.max_bytes, /*cut=*/robots});
    CURL* const handle = job->get->handle();
    curl_multi_add_handle(multi_, handle);
    active_.emplace(handle, std::move(job));
  }

  void leave_host(const std::string& name) {
    const auto host = hosts_.find(name);
    --host->second.active;
    if (!host->second.waiting.empty()) {
      ready_.push_back(name);
    } else if (host->second.active == 0 && host->second.not_before <= Clock::now()) {
      hosts_.erase(host);
    }
  }

  void end_pauses() {
    for (const auto now = Clock::now(); !paused_.empty() && paused_.begin()->first <= now;) {
      const std::string name = std::move(paused_.begin()->second);
      paused_.erase(paused_.begin());
      const auto host = hosts_.find(name);
      if (host == hosts_.end() || now < host->second.not_before) continue;
      const auto places = static_cast<std::size_t>(options_.per_host - host->second.active);
      for (std::size_t i = 0; i < std::min(places, host->second.waiting.size()); ++i) ready_.push_back(name);
      if (host->second.waiting.empty() && host->second.active == 0) hosts_.erase(host);
    }
  }

  // NOTE [Hosts that hang]: rows that wait for their host count as pending, and no more are read while enough are. One
  // host that never answers, and has many rows, would hold up all the others: its rows fail for a while without asking.
  // Another port of it may well answer, so that each counts for itself. A host that asks to wait is left alone as a
  // whole, each time for longer; one that does nothing else (each pause counts once) is as good as silent.
  void listen_to_host(const Job& job, const HttpGet& get,
                      const std::variant<std::string, HttpGet::Redirect, Failure>& result) {
    const auto* const failure = std::get_if<Failure>(&result);
    const bool is_silent = failure && is_unanswered(*failure);
    const long status = failure ? http_status(*failure) : 0;
    const bool asks_to_wait = status == 429 || (status == 503 && get.retry_after());
    const auto now = Clock::now();
    Host& host = hosts_.at(job.url.host);
    const bool is_paused = asks_to_wait && now < host.not_before;
    int& silent = host.silent[job.url.origin];
    double pause = 0;
    if (asks_to_wait) {
      const double backoff = options_.backoff_seconds * (1 << std::min(silent, 7));
      pause = std::min(std::max(get.retry_after().value_or(0), backoff), options_.max_pause_seconds);
      const auto end = now + std::chrono::milliseconds(static_cast<long>(1000 * pause));
      if (end > host.not_before) paused_.emplace(host.not_before = end, job.url.host);
    }
    host.slowness += (get.seconds() + pause - host.slowness) / 4;

    if (!is_paused) silent = is_silent || asks_to_wait ? silent + 1 : 0;
    if (silent < max_silent_rows * (options_.retries + 1)) return;
    silent = 0;
    const Failure& why = asks_to_wait ? *failure : silence_;
    shut(job.url.origin, why);
    for (JobPtr& other : std::exchange(host.waiting, {})) {
      if (other->url.origin == job.url.origin) {
        give_up_at_shut_host(std::move(other), why);
      } else {
        host.waiting.push_back(std::move(other));
      }
    }
  }

  void shut(const std::string& origin, const Failure& why) {
    const auto now = Clock::now();
    if (shut_.size() >= look_through_shut_at_) {  // most are never heard of again
      std::erase_if(shut_, [&](const auto& entry) { return entry.second.until <= now; });
      look_through_shut_at_ = 1000 + 2 * shut_.size();
    }
    shut_[origin] = {now + options_.host_shut_for, why};
  }

  bool is_shut_by(const Failure& why) const { return is_retryable(why) && why.detail != slowness_.detail; }

  // Null = it is not.
  const Failure* why_shut(const std::string& origin) {
    const auto found = shut_.find(origin);
    if (found == shut_.end()) return nullptr;
    if (Clock::now() < found->second.until) return &found->second.why;
    shut_.erase(found);
    return nullptr;
  }

  void finish(CURL* handle, CURLcode code) {
    const auto place = active_.find(handle);
    JobPtr job = std::move(place->second);
    active_.erase(place);
    curl_multi_remove_handle(multi_, handle);
    const std::unique_ptr<HttpGet> get = std::move(job->get);
    auto result = get->take_result(code);
    listen_to_host(*job, *get, result);
    leave_host(job->url.host);
    job->seconds_left -= get->seconds();
    if (auto* const body = std::get_if<std::string>(&result)) {
      done(std::move(job), std::move(*body));
    } else if (const auto* const redirect = std::get_if<HttpGet::Redirect>(&result)) {
      follow(std::move(job), redirect->url);
    } else if (!may_retry(*job, std::get<Failure>(result), code, get->retry_after())) {
      give_up(std::move(job), std::get<Failure>(result));
    } else {
      const auto due = Clock::now() + pause_before_retry(*job, get->retry_after());
      ++job->attempt;
      delayed_.emplace(due, std::move(job));
    }
  }

  void follow(JobPtr job, const std::string& url) {
    if (++job->hops > max_hops) return give_up(std::move(job), {FailureKind::redirects, "more than 5"});
    if (job->seconds_left <= 0) return give_up(std::move(job), {FailureKind::timeout, ""});
    route(std::move(job), url);
  }

  // A name that nobody knows is looked up once more at most: a web list has millions of them, for one resolver.
  bool may_retry(const Job& job, const Failure& failure, CURLcode code, std::optional<double> retry_after) const {
    const int retries = code == CURLE_COULDNT_RESOLVE_HOST ? std::min(1, options_.retries) : options_.retries;
    return is_retryable(failure) && job.attempt < retries && retry_after.value_or(0) <= max_retry_after_seconds;
  }

  // Doubled each time, and spread by half, so that the retries of one host do not come all at once.
  std::chrono::milliseconds pause_before_retry(const Job& job, std::optional<double> retry_after) const {
    const double spread = static_cast<double>(hash64(job.first_url) % 1024) / 1024;
    const double backoff = options_.backoff_seconds * (1 << std::min(job.attempt, 10)) * (0.75 + 0.5 * spread);
    return std::chrono::milliseconds(static_cast<long>(1000 * std::max(retry_after.value_or(0), backoff)));
  }

  void give_up_at_shut_host(JobPtr job, Failure why) {
    job->host_is_shut = is_shut_by(why);
    give_up(std::move(job), std::move(why));
  }

  void give_up(JobPtr job, Failure failure) {
    if (job->robots_of.empty()) return done(std::move(job), std::move(failure));
    // RFC 9309, 2.3.1: no file allows all; a server in trouble, or none, allows nothing. One that says 408 or 429 has
    // not said that there is no file.
    const long status = http_status(failure);
    const bool is_4xx = status >= 400 && status < 500;
    if (failure.kind == FailureKind::redirects || (is_4xx && !is_retryable(failure)))
      return learn(job->robots_of, Robots());
    if (failure.kind == FailureKind::http) failure = {FailureKind::connection, "robots.txt: server error"};
    learn(job->robots_of, std::move(failure));
  }

  void done(JobPtr job, std::variant<std::string, Failure> result) {
    if (job->robots_of.empty()) {
      done_.push_back({job->ticket, std::move(result), job->host_is_shut});
    } else {
      learn(job->robots_of, Robots(std::get<std::string>(result), robots_name));
    }
  }

  void learn(const std::string& origin, RobotsCache::Verdict verdict) {
    const auto& known = robots_.store(origin, std::move(verdict), Clock::now());
    auto waiting = waiting_for_robots_.extract(origin);
    for (JobPtr& job : waiting.mapped()) obey(known, std::move(job));
  }

  const Failure silence_{FailureKind::connection, "the host does not answer"};
  const Failure slowness_{FailureKind::timeout, "the host is slow"};
  const FetchOptions options_;
  CURLM* const multi_;
  std::unordered_map<CURL*, JobPtr> active_;
  std::unordered_map<std::string, Host> hosts_;  // by name
  std::uint64_t came_ = 0;                       // rows at all hosts
  std::unordered_map<std::string, Shut> shut_;   // by origin
  std::size_t look_through_shut_at_ = 1000;
  std::deque<std::string> ready_;  // hosts with a waiting job; some may have no place free
  std::multimap<Clock::time_point, JobPtr> delayed_;
  std::multimap<Clock::time_point, std::string> paused_;  // hosts that are left alone until then
  std::unordered_map<std::string, std::vector<JobPtr>> waiting_for_robots_;
  RobotsCache robots_{options_.host_shut_for};
  std::vector<Fetched> done_;
  std::size_t pending_ = 0;
};

Fetcher::Fetcher(FetchOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Fetcher::~Fetcher() = default;

void Fetcher::add(std::uint64_t ticket, const std::string& url) {
  impl_->add(ticket, url);
}

std::size_t Fetcher::pending() const {
  return impl_->pending();
}

std::size_t Fetcher::transfers() const {
  return impl_->transfers();
}

std::size_t Fetcher::hosts() const {
  return impl_->hosts();
}

std::vector<Fetched> Fetcher::poll(std::chrono::milliseconds wait, bool start_new) {
  return impl_->poll(wait, start_new);
}

void Fetcher::forgive_hosts() {
  impl_->forgive_hosts();
}

void Fetcher::let_slow_hosts_go() {
  impl_->let_slow_hosts_go();
}

}  // namespace millrace
