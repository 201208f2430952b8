import json,sys
def fib(n): return n if n<2 else fib(n-1)+fib(n-2)
d={str(i):[i]*20 for i in range(2000)}
for i in range(4):
    fib(24)
    for _ in range(10): json.loads(json.dumps(d))
    sorted([str(x) for x in range(200000)], key=lambda s: s[::-1])
