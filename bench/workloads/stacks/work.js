function fib(n){return n<2?n:fib(n-1)+fib(n-2)}
for(let i=0;i<6;i++){fib(30); const d={}; for(let j=0;j<50000;j++)d['k'+j]=[j,j]; JSON.parse(JSON.stringify(d)); Object.keys(d).sort();/(a+)+b/.test('a'.repeat(22));}
