#include "net/proxy.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace millrace::test {
namespace {

// The environment's proxies are those of a test, until its end.
class Proxy : public testing::Test {
 protected:
  Proxy() {
    for (const char* name :
         {"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"}) {
      const char* const value = std::getenv(name);
      before_[name] = value ? value : "";
      ::unsetenv(name);
    }
  }
  ~Proxy() override {
    for (const auto& [name, value] : before_)
      value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::map<std::string, std::string> before_;
};

TEST_F(Proxy, IsThatOfTheScheme) {
  EXPECT_EQ(find_proxy("https", "a.org"), "");
  ::setenv("ALL_PROXY", "http://all", 1);
  ::setenv("HTTP_PROXY", "http://of-a-request", 1);
  EXPECT_EQ(find_proxy("http", "a.org"), "http://all");
  ::setenv("http_proxy", "http://one", 1);
  ::setenv("HTTPS_PROXY", "http://two", 1);
  EXPECT_EQ(find_proxy("http", "a.org"), "http://one");
  EXPECT_EQ(find_proxy("https", "a.org"), "http://two");
}

TEST_F(Proxy, IsNotForWhatNoProxyHas) {
  ::setenv("all_proxy", "http://p", 1);
  ::setenv("no_proxy", "minio, .Lab.org,10.1.0.0/16,192.168.0.7", 1);
  for (const char* host : {"minio", "a.minio", "lab.org", "S3.lab.org", "10.1.255.3", "192.168.0.7"})
    EXPECT_EQ(find_proxy("http", host), "") << host;
  for (const char* host : {"minio2", "xlab.org", "lab.org.de", "10.2.0.1", "192.168.0.70"})
    EXPECT_EQ(find_proxy("http", host), "http://p") << host;
  ::setenv("no_proxy", "*", 1);
  EXPECT_EQ(find_proxy("https", "a.org"), "");
}

}  // namespace
}  // namespace millrace::test
