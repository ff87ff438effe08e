#include "millrace/download/fetcher.h"

#include <curl/curl.h>

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "http_get.h"
#include "millrace/core/error.h"
#include "millrace/core/hash.h"
#include "millrace/io/net/http.h"
#include "opt_out.h"
#include "robots.h"
#include "url.h"

namespace millrace {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int max_hops = 5;
constexpr double max_retry_after_seconds = 10;
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

  std::vector<Fetched> poll(std::chrono::milliseconds wait, bool start_new) {
    advance(start_new);
    if (done_.empty()) {
      curl_multi_poll(multi_, nullptr, 0, static_cast<int>(time_to_wait(wait).count()), nullptr);
      advance(start_new);
    }
    pending_ -= done_.size();
    return std::exchange(done_, {});
  }

 private:
  void advance(bool start_new) {
    for (const auto now = Clock::now(); !delayed_.empty() && delayed_.begin()->first <= now;) {
      JobPtr job = std::move(delayed_.begin()->second);
      delayed_.erase(delayed_.begin());
      begin_attempt(std::move(job));
    }
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
    if (delayed_.empty()) return wait;
    const auto next = std::chrono::ceil<std::chrono::milliseconds>(delayed_.begin()->first - Clock::now());
    return std::clamp(next, std::chrono::milliseconds(0), wait);
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
      job->host_is_shut = is_retryable(*failure);
      done(std::move(job), *failure);
    } else if (!std::get<Robots>(verdict).allows(job->url.path)) {
      done(std::move(job), Failure{FailureKind::robots, "disallowed"});
    } else {
      enqueue(std::move(job));
    }
  }

  void enqueue(JobPtr job) {
    if (is_shut(job->url.origin)) return give_up_at_shut_host(std::move(job));
    const std::string name = job->url.host;
    hosts_[name].waiting.push_back(std::move(job));
    ready_.push_back(name);
  }

  void start_ready() {
    while (!ready_.empty() && active_.size() < static_cast<std::size_t>(options_.connections)) {
      const std::string name = std::move(ready_.front());
      ready_.pop_front();
      const auto host = hosts_.find(name);
      if (host == hosts_.end() || host->second.waiting.empty()) continue;
      if (host->second.active >= options_.per_host) continue;  // `leave_host` brings it back
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
    } else if (host->second.active == 0) {
      hosts_.erase(host);
    }
  }

  // NOTE [Hosts that hang]: rows that wait for their host count as pending, and no more are read while enough are. One
  // host that never answers, and has many rows, would hold up all the others: its rows fail for a while without asking.
  // Another port of it may well answer, so that each counts for itself.
  void listen_to_host(const Url& url, const std::variant<std::string, HttpGet::Redirect, Failure>& result) {
    const auto* const failure = std::get_if<Failure>(&result);
    const bool is_silent =
        failure && (failure->kind == FailureKind::timeout || failure->kind == FailureKind::connection);
    Host& host = hosts_.at(url.host);
    int& silent = host.silent[url.origin];
    silent = is_silent ? silent + 1 : 0;
    if (silent < max_silent_rows * (options_.retries + 1)) return;
    silent = 0;
    shut_[url.origin] = Clock::now() + host_shut_for;
    for (JobPtr& job : std::exchange(host.waiting, {})) {
      if (job->url.origin == url.origin) {
        give_up_at_shut_host(std::move(job));
      } else {
        host.waiting.push_back(std::move(job));
      }
    }
  }

  bool is_shut(const std::string& origin) {
    const auto found = shut_.find(origin);
    if (found == shut_.end()) return false;
    if (Clock::now() < found->second) return true;
    shut_.erase(found);
    return false;
  }

  void finish(CURL* handle, CURLcode code) {
    const auto place = active_.find(handle);
    JobPtr job = std::move(place->second);
    active_.erase(place);
    curl_multi_remove_handle(multi_, handle);
    const std::unique_ptr<HttpGet> get = std::move(job->get);
    auto result = get->take_result(code);
    listen_to_host(job->url, result);
    leave_host(job->url.host);
    job->seconds_left -= get->seconds();
    if (auto* const body = std::get_if<std::string>(&result)) {
      done(std::move(job), std::move(*body));
    } else if (const auto* const redirect = std::get_if<HttpGet::Redirect>(&result)) {
      follow(std::move(job), redirect->url);
    } else if (!may_retry(*job, std::get<Failure>(result), get->retry_after())) {
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

  bool may_retry(const Job& job, const Failure& failure, std::optional<double> retry_after) const {
    return is_retryable(failure) && job.attempt < options_.retries &&
           retry_after.value_or(0) <= max_retry_after_seconds;
  }

  // Doubled each time, and spread by half, so that the retries of one host do not come all at once.
  std::chrono::milliseconds pause_before_retry(const Job& job, std::optional<double> retry_after) const {
    const double spread = static_cast<double>(hash64(job.first_url) % 1024) / 1024;
    const double backoff = options_.backoff_seconds * (1 << std::min(job.attempt, 10)) * (0.75 + 0.5 * spread);
    return std::chrono::milliseconds(static_cast<long>(1000 * std::max(retry_after.value_or(0), backoff)));
  }

  void give_up_at_shut_host(JobPtr job) {
    job->host_is_shut = true;
    give_up(std::move(job), silence_);
  }

  void give_up(JobPtr job, Failure failure) {
    if (job->robots_of.empty()) return done(std::move(job), std::move(failure));
    // RFC 9309, 2.3.1: no file allows all; a server in trouble, or none, allows nothing.
    if (failure.kind == FailureKind::redirects || (failure.kind == FailureKind::http && failure.detail[0] == '4'))
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
    robots_.store(origin, std::move(verdict), Clock::now());
    auto waiting = waiting_for_robots_.extract(origin);
    for (JobPtr& job : waiting.mapped()) obey(*robots_.find(origin, Clock::now()), std::move(job));
  }

  const Failure silence_{FailureKind::connection, "the host does not answer"};
  const FetchOptions options_;
  CURLM* const multi_;
  std::unordered_map<CURL*, JobPtr> active_;
  std::unordered_map<std::string, Host> hosts_;              // by name
  std::unordered_map<std::string, Clock::time_point> shut_;  // origins that are not asked until then
  std::deque<std::string> ready_;                            // hosts with a waiting job; some may have no place free
  std::multimap<Clock::time_point, JobPtr> delayed_;
  std::unordered_map<std::string, std::vector<JobPtr>> waiting_for_robots_;
  RobotsCache robots_;
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

std::vector<Fetched> Fetcher::poll(std::chrono::milliseconds wait, bool start_new) {
  return impl_->poll(wait, start_new);
}

}  // namespace millrace
