def fib(n) n<2 ? n : fib(n-1)+fib(n-2) end
3.times { fib(25); h={}; 100000.times{|i| h["k#{i}"]=[i]*3}; h.sort_by{|k,v| k.reverse} }
