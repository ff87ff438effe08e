#pragma once
#include <string>
#include <variant>

#include "millrace/download/failure.h"

namespace millrace {

// An http or https URL in parts.
struct Url {
  std::string text;    // whole, characters that URLs must not hold encoded, without fragment
  std::string host;    // without its port: whom the limit per host is about
  std::string origin;  // "https://host:443": whom robots.txt is about
  std::string path;    // path and query, "/" at least
};

// Failure(refused) for other schemes and for names and passwords in the URL, Failure(bad_url) for what is no URL.
// Spaces and characters beyond ASCII are encoded, as browsers do it, and those of the host's name as resolvers know it.
std::variant<Url, Failure> parse_url(const std::string& raw);

// Where a redirect of `base` to `location` leads. What is no URL stays as it is.
std::string absolute_url(const std::string& base, const std::string& location);

}  // namespace millrace
