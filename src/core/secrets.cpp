#include "millrace/core/secrets.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "millrace/core/text.h"

namespace millrace {
namespace {

constexpr std::string_view mask = "***";
constexpr std::string_view blanks = " \t\r\n";
constexpr std::string_view ends_of_address = " \t\r\n\"'`<>\\";
constexpr std::string_view ends_of_value = " \t\r\n\"'`<>\\&#,;()[]{}";

bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;
}

bool is_name_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
}

constexpr std::array secret_words = {"signature",  "token",       "secret",     "password", "passwd",
                                     "credential", "credentials", "apikey",     "api_key",  "api-key",
                                     "access_key", "access-key",  "accesskeyid"};

// Of a parameter: "X-Amz-Security-Token" and "HF_TOKEN", but not "tokenizer" and "max_tokens".
bool is_secret_name(std::string_view name) {
  constexpr std::array whole = {"sig", "key", "auth", "pass", "pwd"};
  const auto lowered = lower(name);
  if (std::ranges::find(whole, lowered) != whole.end()) return true;
  return std::ranges::any_of(secret_words, [&](std::string_view word) {
    const auto at = lowered.find(word), end = at + word.size();
    return at != lowered.npos && (end == lowered.size() || !is_letter(lowered[end]));
  });
}

// Of a variable or an option: not "--token-count", "--password-file" and the KEY=VALUE of our own messages.
bool is_secret_word(std::string_view name) {
  const auto lowered = lower(name);
  return lowered.ends_with("_key") ||
         std::ranges::any_of(secret_words, [&](std::string_view word) { return lowered.ends_with(word); });
}

// Replaces text[begin, end) and returns where it goes on.
std::size_t replace(std::string& text, std::size_t begin, std::size_t end) {
  text.replace(begin, end - begin, mask);
  return begin + mask.size();
}

std::size_t find_end(const std::string& text, std::string_view ends, std::size_t from) {
  return std::min(text.find_first_of(ends, from), text.size());
}

// Of NAME:PASSWORD@HOST, what stands before a slash in the password; HOST:80 of an address is none.
bool ends_in_password(std::string_view host) {
  const auto colon = host.rfind(':');
  if (host.find_first_of("@[") != host.npos || colon == host.npos) return false;
  const auto port = host.substr(colon + 1);
  return port.find_first_not_of("0123456789{}.,") != port.npos;  // also {8000..8003}
}

void hide_users(std::string& text) {
  constexpr std::string_view sign = "://";
  for (std::size_t at = text.find(sign); at != text.npos; at = text.find(sign, at)) {
    at += sign.size();
    const auto end = find_end(text, ends_of_address, at);
    auto host_end = std::min(end, find_end(text, "/?#", at));
    if (ends_in_password(std::string_view(text).substr(at, host_end - at))) host_end = end;
    const auto user_end = text.substr(at, host_end - at).rfind('@');
    if (user_end != text.npos) at = replace(text, at, at + user_end);
  }
}

void hide_parameters(std::string& text) {
  for (std::size_t at = text.find_first_of("?&"); at != text.npos; at = text.find_first_of("?&", at)) {
    const auto name = ++at;
    while (at < text.size() && is_name_letter(text[at])) ++at;
    if (at == text.size() || text[at] != '=' || !is_secret_name(std::string_view(text).substr(name, at - name)))
      continue;
    const auto end = find_end(text, ends_of_value, ++at);
    if (end > at) at = replace(text, at, end);
  }
}

// Masks the word from `at` on, in quotes up to their end, which may be escaped as in JSON; returns where the text goes
// on.
std::size_t hide_word(std::string& text, std::size_t at) {
  const auto is_quote = [&](std::size_t place) {
    return place < text.size() && (text[place] == '"' || text[place] == '\'');
  };
  if (at < text.size() && text[at] == '\\' && is_quote(at + 1)) ++at;
  const bool is_quoted = is_quote(at);
  if (is_quoted) ++at;
  const auto end = find_end(text, is_quoted ? text.substr(at - 1, 1) + "\\" : std::string(ends_of_address), at);
  return end > at ? replace(text, at, end) : at;
}

// NAME=value of a shell, and --name=value or --name value. Keys of a configuration are neither.
void hide_words_of_commands(std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto begin = at;
    while (at < text.size() && is_name_letter(text[at])) ++at;
    const auto word = std::string_view(text).substr(begin, at - begin);
    const bool is_option = word.starts_with("--"), is_assigned = at < text.size() && text[at] == '=';
    const bool is_variable =
        is_assigned && std::ranges::none_of(word, [](char c) { return ('a' <= c && c <= 'z') || c == '.'; });
    const auto value = is_assigned ? at + 1 : std::min(text.find_first_not_of(blanks, at), text.size());
    if ((is_variable || (is_option && value > at)) && is_secret_word(word))
      at = hide_word(text, value);
    else
      ++at;
  }
}

// In quotes up to their end, else the word behind it, and the one behind "Bearer" or the like.
void hide_authorization(std::string& text) {
  constexpr std::string_view header = "authorization:";
  auto lowered = lower(text);
  for (std::size_t at = lowered.find(header); at != text.npos; at = lowered.find(header, at)) {
    const bool is_quoted = at > 0 && (text[at - 1] == '"' || text[at - 1] == '\'');
    at += header.size();
    auto end = is_quoted ? find_end(text, "\"'\\\r\n", at)
                         : find_end(text, ends_of_address, std::min(text.find_first_not_of(blanks, at), text.size()));
    for (const char* scheme : {"bearer", "basic", "token"})
      if (!is_quoted && lowered.substr(at, end - at).ends_with(scheme))
        end = find_end(text, ends_of_address, std::min(text.find_first_not_of(blanks, end), text.size()));
    at = replace(text, at, end);
    lowered = lower(text);
  }
}

std::vector<std::string> secrets_of_environment() {
  constexpr std::size_t shortest = 8;  // fewer letters may stand anywhere
  std::vector<std::string> values;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view pair = *variable;
    const auto name = pair.substr(0, pair.find('='));
    if (!name.starts_with("WDS_") || name.size() == pair.size() || !is_secret_name(name.substr(4))) continue;
    if (const auto value = pair.substr(name.size() + 1); value.size() >= shortest) values.emplace_back(value);
  }
  return values;
}

void hide_variables(std::string& text) {
  static const auto secrets = secrets_of_environment();
  for (const auto& secret : secrets)
    for (std::size_t at = text.find(secret); at != text.npos; at = text.find(secret, at))
      at = replace(text, at, at + secret.size());
}

}  // namespace

std::string without_secrets(std::string_view text) {
  std::string shown(text);
  hide_variables(shown);
  if (shown.find_first_of(":?&=") == shown.npos) return shown;  // most names of files
  hide_users(shown);
  hide_parameters(shown);
  hide_words_of_commands(shown);
  hide_authorization(shown);
  return shown;
}

}  // namespace millrace
