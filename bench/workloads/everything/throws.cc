// C++ that departs from plain calls and returns in every way that C++ has: exceptions through many frames, rethrown and nested, kept and thrown
// again on another thread, destructors, virtual calls, coroutines, threads that end. Prints one line for each, always the same.
#include <algorithm>
#include <coroutine>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

static thread_local long destroyed;

struct Guard {
    long &count;
    explicit Guard(long &count) : count(count) {}
    ~Guard() { count++; }
};

struct Odd : std::runtime_error {
    int number;
    explicit Odd(int number) : std::runtime_error("odd " + std::to_string(number)), number(number) {}
};

__attribute__((noinline)) int deep(int depth, int number)
{
    Guard guard(destroyed);
    std::string text(static_cast<size_t>(depth) + 1, 'x');
    if (depth == 0) {
        if (number % 2)
            throw Odd(number);
        return static_cast<int>(text.size());
    }
    return deep(depth - 1, number) + static_cast<int>(text.size());
}

__attribute__((noinline)) int rethrows(int depth, int number)
{
    try {
        return deep(depth, number);
    } catch (Odd &odd) {
        Guard guard(destroyed);
        if (odd.number % 3 == 0)
            throw;
        return odd.number;
    }
}

__attribute__((noinline)) int nests(int depth, int number)
{
    try {
        return rethrows(depth, number);
    } catch (const std::exception &) {
        std::throw_with_nested(std::logic_error("nested"));
    }
}

static int exceptions(int rounds)
{
    int sum = 0;
    for (int i = 0; i < rounds; i++) {
        try {
            sum += nests(i % 40, i);
        } catch (const std::logic_error &error) {
            try {
                std::rethrow_if_nested(error);
            } catch (const Odd &odd) {
                sum += odd.number % 7;
            }
        }
    }
    return sum;
}

// A destructor that throws and catches while an exception passes.
struct Busy {
    int number;
    ~Busy()
    {
        try {
            deep(3, number | 1);
        } catch (const Odd &) {
            destroyed += 2;
        }
    }
};

__attribute__((noinline)) static int while_passing(int number)
{
    Busy busy{number};
    return deep(5, number);
}

static int from_another_thread(int number)
{
    std::exception_ptr kept;
    std::thread thread([&] {
        try {
            deep(number % 30, number);
        } catch (...) {
            kept = std::current_exception();
        }
    });
    thread.join();
    try {
        if (kept)
            std::rethrow_exception(kept);
        return 1;
    } catch (const Odd &odd) {
        return odd.number;
    }
}

template <typename T> struct Generator {
    struct promise_type {
        T value{};
        std::exception_ptr failure;
        Generator get_return_object() { return Generator{std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        std::suspend_always yield_value(T next)
        {
            value = std::move(next);
            return {};
        }
        void return_void() {}
        void unhandled_exception() { failure = std::current_exception(); }
    };
    std::coroutine_handle<promise_type> handle;
    explicit Generator(std::coroutine_handle<promise_type> handle) : handle(handle) {}
    Generator(Generator &&other) noexcept : handle(std::exchange(other.handle, {})) {}
    ~Generator()
    {
        if (handle)
            handle.destroy();
    }
    std::optional<T> next()
    {
        handle.resume();
        if (handle.promise().failure)
            std::rethrow_exception(handle.promise().failure);
        if (handle.done())
            return std::nullopt;
        return handle.promise().value;
    }
};

static Generator<int> numbers(int end)
{
    Guard guard(destroyed);
    for (int i = 0;; i++) {
        if (i == end)
            deep(4, end);
        if (i > end)
            co_return;
        co_yield i * i;
    }
}

static long coroutines(int rounds)
{
    long sum = 0;
    for (int i = 0; i < rounds; i++) {
        Generator<int> one = numbers(i % 9), other = numbers(i % 5);
        try {
            for (;;) {
                std::optional<int> a = one.next(), b = other.next();
                if (!a && !b)
                    break;
                sum += a.value_or(-1) + b.value_or(-2);
                if (!a || !b)
                    break;
            }
        } catch (const Odd &odd) {
            sum += odd.number * 1000;
        }
    }
    return sum;
}

struct Shape {
    virtual ~Shape() = default;
    virtual double area() const = 0;
};
struct Square : Shape {
    double side;
    explicit Square(double side) : side(side) {}
    double area() const override { return side * side; }
};
struct Circle : Shape {
    double radius;
    explicit Circle(double radius) : radius(radius) {}
    double area() const override
    {
        if (radius < 0)
            throw std::domain_error("radius");
        return 3.25 * radius * radius;
    }
};

static double shapes(int rounds)
{
    double sum = 0;
    for (int i = 0; i < rounds; i++) {
        std::vector<std::unique_ptr<Shape>> all;
        all.push_back(std::make_unique<Square>(i));
        all.push_back(std::make_unique<Circle>(i % 4 - 1));
        for (const auto &shape : all) {
            try {
                sum += shape->area();
            } catch (const std::domain_error &) {
                sum -= 1;
            }
        }
    }
    return sum;
}

static unsigned long library(int rounds)
{
    unsigned long sum = 0;
    std::map<std::string, int> words;
    for (int i = 0; i < rounds; i++) {
        std::ostringstream out;
        out << "word" << i % 37 << ' ' << std::hex << i << ' ' << i / 3.0;
        std::istringstream in(out.str());
        std::string word;
        while (in >> word)
            words[word] += static_cast<int>(word.size());
        try {
            sum += std::stoul(i % 2 ? "12" : "twelve");
        } catch (const std::invalid_argument &) {
            sum += 100;
        }
        try {
            sum += static_cast<unsigned char>(std::string("abc").at(static_cast<size_t>(i % 5)));
        } catch (const std::out_of_range &) {
            sum += 1000;
        }
    }
    if (rounds > 0)
        sum += std::regex_match("kymo-0123", std::regex("[a-z]+-[0-9]{4}"));
    for (const auto &[word, count] : words)
        sum = sum * 31 + static_cast<unsigned long>(count) + word.size();
    return sum;
}

static long threads(int count, int rounds)
{
    std::vector<std::future<long>> all;
    for (int i = 0; i < count; i++)
        all.push_back(std::async(std::launch::async, [i, rounds] {
            destroyed = 0;
            long sum = 0;
            for (int n = 0; n < rounds; n++)
                sum += exceptions(7 + i);
            return sum + destroyed;
        }));
    long sum = 0;
    for (auto &one : all)
        sum += one.get();
    return sum;
}

int main(int argc, char **argv)
{
    int times = argc > 1 ? std::atoi(argv[1]) : 1;
    for (int time = 0; time < times; time++) {
        destroyed = 0;
        int sum = exceptions(300);
        std::printf("exceptions %d %ld\n", sum, destroyed);
        sum = 0;
        for (int i = 0; i < 50; i++) {
            try {
                sum += while_passing(i);
            } catch (const Odd &odd) {
                sum += odd.number;
            }
        }
        std::printf("while passing %d %ld\n", sum, destroyed);
        sum = 0;
        for (int i = 0; i < 20; i++)
            sum += from_another_thread(i);
        std::printf("from another thread %d\n", sum);
        std::printf("coroutines %ld %ld\n", coroutines(200), destroyed);
        std::printf("shapes %g\n", shapes(200));
        std::printf("library %lu\n", library(200));
        std::printf("threads %ld\n", threads(4, 3));
    }
    std::vector<int> order(100);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), std::greater<>());
    std::printf("end %d\n", order.front());
    return 0;
}
