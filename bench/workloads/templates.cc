// One unit of a large C++ program: many instances of the standard library's templates, and `work`,
// which uses them. `bench/versus.py annotate --megabytes` compiles it once and links it many times
// under other names.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

template <int N>
struct Record {
    std::array<std::uint64_t, N> words{};
    std::string name;
    std::variant<int, double, std::string> value;
    bool operator<(const Record &other) const { return words < other.words; }
};

template <int N>
static std::uint64_t collect(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::map<std::uint64_t, Record<N>> ordered;
    std::unordered_map<std::string, std::vector<Record<N>>> by_name;
    std::set<Record<N>> distinct;
    std::deque<std::optional<Record<N>>> waiting;
    for (int at = 0; at < 50; at++) {
        Record<N> record;
        for (auto &word : record.words)
            word = random();
        record.name = std::to_string(record.words[0] % 17);
        record.value = double(at);
        by_name[record.name].push_back(record);
        ordered.emplace(record.words[0], record);
        distinct.insert(record);
        waiting.emplace_back(std::move(record));
    }
    std::list<std::uint64_t> sums;
    for (auto &[name, records] : by_name) {
        std::sort(records.begin(), records.end());
        std::function<std::uint64_t(std::uint64_t, const Record<N> &)> add =
            [](std::uint64_t sum, const Record<N> &record) { return sum + record.words[N - 1]; };
        sums.push_back(std::accumulate(records.begin(), records.end(), std::uint64_t{0}, add));
    }
    return std::accumulate(sums.begin(), sums.end(), ordered.begin()->first + waiting.size() + distinct.size());
}

template <int... N>
static std::uint64_t collect_all(std::uint64_t seed, std::integer_sequence<int, N...>) {
    return (collect<N + 1>(seed) + ...);
}

static std::uint64_t matches(const std::string &text) {
    static const std::regex words("([0-9]+)[a-f]*");
    return std::distance(std::sregex_iterator(text.begin(), text.end(), words), std::sregex_iterator());
}

// Where the time goes: the innermost loop has inlined calls of templates.
extern "C" std::uint64_t work(std::uint64_t rounds) {
    std::vector<std::uint64_t> numbers(1 << 12);
    std::uint64_t sum = collect_all(rounds, std::make_integer_sequence<int, 24>()) + matches(std::to_string(rounds));
    for (std::uint64_t round = 0; round < rounds; round++) {
        for (auto &number : numbers)
            number = (number ^ (sum >> 7)) * 0x9e3779b97f4a7c15 + std::min(round, number);
        sum += *std::max_element(numbers.begin(), numbers.end());
    }
    return sum;
}
