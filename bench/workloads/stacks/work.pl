sub fib { my $n=shift; return $n<2?$n:fib($n-1)+fib($n-2) } 
for(1..3){fib(23); my %h; $h{"k$_"}=[$_]for 1..200000; my @s=sort {reverse($a) cmp reverse($b)} keys %h; my $t=join ' ',@s; $t=~s/(\d+)/<$1>/g;}
