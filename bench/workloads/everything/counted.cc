// Methods, virtual ones, templates, lambdas, constructors, exceptions, called known numbers of times: the hooks count them.
#include "hooks.h"
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

struct Node {
    int value;
    std::unique_ptr<Node> left, right;
    explicit Node(int value) : value(value) {}
    virtual ~Node() {}
    virtual int weight() const { return 1; }
    int size() const { return weight() + (left ? left->size() : 0) + (right ? right->size() : 0); }
};
struct Heavy : Node {
    using Node::Node;
    ~Heavy() override {}
    int weight() const override { return 3; }
};

static void insert(std::unique_ptr<Node> &tree, int value)
{
    if (!tree)
        tree = value % 5 ? std::make_unique<Node>(value) : std::make_unique<Heavy>(value);
    else
        insert(value < tree->value ? tree->left : tree->right, value);
}

template <typename T> T twice(T value) { return value + value; }

static int risky(int n, int depth)
{
    if (depth == 0) {
        if (n % 3 == 0)
            throw std::runtime_error("three");
        return n;
    }
    return risky(n, depth - 1) + 1;
}

static int careful(int n)
{
    try {
        return risky(n, n % 20);
    } catch (const std::runtime_error &) {
        return -1;
    }
}

static long work(int rounds)
{
    long sum = 0;
    for (int i = 0; i < rounds; i++) {
        auto lambda = [&](int more) { return careful(i) + more; };
        sum += lambda(2) + twice(i) + static_cast<long>(twice(0.5));
    }
    return sum;
}

int main()
{
    std::unique_ptr<Node> tree;
    for (int i = 0; i < 2000; i++)
        insert(tree, i * 7919 % 2003);
    long one = 0, other = 0;
    std::thread thread([&] { one = work(500); });
    other = work(600);
    thread.join();
    std::printf("%d %ld %ld\n", tree->size(), one, other);
    return 0;
}
