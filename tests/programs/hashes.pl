# Hashes, arrays, long strings and regular expressions.
my (%count, @kept);
for my $i (1 .. 200000) {
    my $word = substr("abcdefghij" x 3, $i % 17, 1 + $i % 11);
    $count{$word}++;
    push @kept, $word x ($i % 5) if $i % 3;
}
my $text = join ",", sort @kept;
$text =~ s/([aeiou]+)/<$1>/g;
print length($text), " ", scalar(keys %count), " ", unpack("%32C*", $text), "\n";
